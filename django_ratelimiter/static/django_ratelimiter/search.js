"use strict";

/* The search field suggests pages while somebody types. The text is sent in the body, as by the button: it may be a key.
   The list comes from the server. Without this script, the button lists the same pages. */

document.addEventListener("DOMContentLoaded", () => {
    const field = document.getElementById("ratelimiter-search");
    const list = document.getElementById("ratelimiter-suggestions");
    const status = document.getElementById("ratelimiter-suggested");
    if (!field || !list || !status) {
        return;
    }
    const PAUSE_MS = 200;
    const box = field.parentElement;
    let timer;
    let asking = new AbortController();

    async function ask() {
        asking = new AbortController();
        const sent = new FormData(field.form);
        sent.set("suggest", "1");
        try {
            const response = await fetch(field.form.action, { method: "POST", body: sent, signal: asking.signal });
            show(response.ok && !response.redirected ? await response.text() : "");
        } catch {
            show("");
        }
    }

    function show(html) {
        const page = new DOMParser().parseFromString(html, "text/html");
        const count = page.querySelectorAll("a").length;
        list.replaceChildren(...page.body.childNodes);
        list.hidden = !count;
        status.textContent = count === 1 ? status.dataset.one : count ? status.dataset.more.replace("{count}", count) : "";
    }

    field.addEventListener("input", () => {
        clearTimeout(timer);
        asking.abort();
        if (field.value.trim().length < 2) {
            show("");
        } else {
            timer = setTimeout(ask, PAUSE_MS);
        }
    });

    /* The list covers what is below it, so it is only there while somebody is in it or in the field. */
    function leave(target) {
        if (target && !box.contains(target)) {
            list.hidden = true;
        }
    }

    document.addEventListener("pointerdown", (event) => leave(event.target));
    box.addEventListener("focusout", (event) => leave(event.relatedTarget));
    field.addEventListener("focus", () => {
        list.hidden = !list.childElementCount;
    });

    box.addEventListener("keydown", (event) => {
        const stops = [field, ...list.querySelectorAll("a")];
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        const next = step && stops[stops.indexOf(event.target) + step];
        if (next) {
            event.preventDefault();
            next.focus();
        } else if (event.key === "Escape" && !list.hidden) {
            event.preventDefault();
            show("");
            field.focus();
        }
    });
});
