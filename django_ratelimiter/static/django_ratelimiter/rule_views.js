"use strict";

/* The page of a rule: says which views it would match while that is being typed, and completes its path by what it is
   compared with. Every word comes from the server. */

document.addEventListener("DOMContentLoaded", () => {
    const address = document.getElementById("ratelimiter-limits")?.dataset.views;
    const form = document.getElementById("rule_form");
    const answer = form?.querySelector(".ratelimiter-views");
    const FIELDS = ["path_kind", "path", "view_name", "scope"];
    const PAUSE_MS = 200;
    let latest;

    if (!address || !answer || !form.elements.path) {
        return; // somebody who may only look
    }

    function completePath() {
        const list = form.elements.path_kind.value === "route" ? "ratelimiter-routes" : "ratelimiter-paths";
        form.elements.path.setAttribute("list", list);
    }

    async function ask() {
        latest?.abort();
        const controller = (latest = new AbortController());
        const { signal } = controller;
        try {
            await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
            if (signal.aborted) {
                return;
            }
            const typed = FIELDS.map((name) => [name, form.elements[name].value]);
            const response = await fetch(`${address}?${new URLSearchParams(typed)}`, { signal });
            answer.textContent = response.ok ? (await response.json()).views : "";
        } catch {
            if (!signal.aborted) {
                answer.textContent = ""; // rather nothing than what no longer holds
            }
        }
    }

    function hear(event) {
        if (FIELDS.includes(event.target.name)) {
            completePath();
            ask();
        }
    }

    form.addEventListener("input", hear);
    form.addEventListener("change", hear);
    window.jQuery?.(form).on("change", hear); // of lists that a theme has replaced by its own
    completePath();
    ask();
});
