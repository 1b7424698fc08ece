"use strict";

/* The limits on the page of a rule: shows the fields that the chosen algorithm uses, and what the limit will do.
   Which fields those are, and every word, comes from the server. Without this script all fields are shown. */

document.addEventListener("DOMContentLoaded", () => {
    const data = document.getElementById("ratelimiter-limits")?.dataset;
    const form = document.getElementById("rule_form");
    if (!data || !form) {
        return;
    }
    const columns = JSON.parse(data.columns);
    const numbers = JSON.parse(data.numbers);
    const asked = new WeakMap();
    const ROW = "#limits-group .inline-related:not(.empty-form)";
    const OF_RULE = ["cost", "partition_by", "partition_by_others", "count_refusals", "charge_when", "sync_interval_ms"];
    const PAUSE_MS = 200;

    const input = (row, name) => row.querySelector(`[name^="limits-"][name$="-${name}"]`);
    const place = (row, name) => row.querySelector(`.form-row.field-${name}`);

    function arrange(row) {
        const algorithm = input(row, "algorithm");
        if (!algorithm) {
            return; // somebody who may only look
        }
        const unlimited = input(row, "unlimited").checked;
        const byCalendar = columns[algorithm.value];
        const used = byCalendar ? byCalendar[input(row, "calendar").value] ?? byCalendar[""] : numbers;
        for (const name of numbers) {
            place(row, name).hidden = unlimited || !used.includes(name);
        }
        place(row, "algorithm").hidden = unlimited;
    }

    function typed(row) {
        const sent = new URLSearchParams();
        for (const [name, value] of new FormData(form)) {
            const own = input(row, "algorithm").name.replace("algorithm", "");
            if (name.startsWith(own)) {
                sent.append(name.slice(own.length), value);
            } else if (OF_RULE.includes(name)) {
                sent.append(name, value);
            }
        }
        return sent;
    }

    function showErrors(row, errors) {
        for (const old of row.querySelectorAll(".errorlist")) {
            old.remove();
        }
        for (const old of row.querySelectorAll(".errors")) {
            old.classList.remove("errors");
        }
        for (const [name, texts] of Object.entries(errors)) {
            const list = document.createElement("ul");
            list.className = "errorlist";
            list.id = `${input(row, name).id}_error`;
            for (const text of texts) {
                list.appendChild(document.createElement("li")).textContent = text;
            }
            place(row, name).classList.add("errors");
            place(row, name).prepend(list);
        }
        for (const name of [...numbers, "algorithm", "tier"]) {
            input(row, name).toggleAttribute("aria-invalid", name in errors);
        }
    }

    async function ask(row) {
        asked.get(row)?.abort();
        const controller = new AbortController();
        asked.set(row, controller);
        const sentences = row.querySelector(".ratelimiter-sentences");
        try {
            await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
            if (controller.signal.aborted) {
                return;
            }
            const response = await fetch(`${data.address}?${typed(row)}`, { signal: controller.signal });
            const told = response.ok ? await response.json() : { sentences: "", errors: {} };
            sentences.textContent = told.sentences;
            showErrors(row, told.errors);
        } catch {
            if (!controller.signal.aborted) {
                sentences.textContent = ""; // rather nothing than what no longer holds
            }
        }
    }

    function meet(row) {
        arrange(row);
        if (input(row, "algorithm") && !row.querySelector(".errorlist, .ratelimiter-sentences:not(:empty)")) {
            ask(row);
        }
    }

    function hear(event) {
        const row = event.target.closest(ROW);
        if (row) {
            arrange(row);
            ask(row);
        } else if (OF_RULE.includes(event.target.name)) {
            document.querySelectorAll(ROW).forEach(ask);
        }
    }

    form.addEventListener("input", hear);
    form.addEventListener("change", hear); // all that some browsers and scripts send for a list
    document.addEventListener("formset:added", (event) => {
        if (event.detail.formsetName === "limits") {
            meet(event.target);
        }
    });
    document.querySelectorAll(ROW).forEach(meet);
    // A browser that comes back to the page may have filled in what was typed before.
    window.addEventListener("pageshow", () => document.querySelectorAll(ROW).forEach(arrange));
});
