"use strict";

/* The page of a rule: shows the fields of a limit that the chosen algorithm uses, what the limit will do, and which views
   the rule would match.
   Which fields those are, and every word, comes from the server. Nothing is known of how a theme lays the page out:
   a field is hidden with the largest element that holds its label and no other field. Where there is none, and without
   this script, all fields are shown. */

document.addEventListener("DOMContentLoaded", () => {
    const data = document.getElementById("ratelimiter-limits")?.dataset;
    const form = document.getElementById("rule_form");
    if (!data || !form) {
        return;
    }
    const columns = JSON.parse(data.columns);
    const numbers = JSON.parse(data.numbers);
    const asked = new WeakMap();
    const known = new WeakSet();
    const OF_RULE = ["cost", "partition_by", "partition_by_others", "count_refusals", "charge_when", "sync_interval_ms"];
    const OF_VIEWS = ["path_kind", "path", "view_name", "scope"];
    const PAUSE_MS = 200;

    /* A limit is known by the number in its fields' names; the form that new ones are copied from has no number. */
    const limits = () => [...new Set([...form.elements].map(limitOf))].filter(Boolean);
    const limitOf = (element) => /^(limits-\d+-)/.exec(element.name ?? "")?.[1];
    const input = (limit, name) => form.elements[limit + name];

    /* The largest element around this one all of whose fields belong to it. */
    function around(element, belongs, end) {
        let largest = element;
        while (largest.parentElement && largest.parentElement !== end && holdsOnly(largest.parentElement, belongs)) {
            largest = largest.parentElement;
        }
        return largest;
    }

    const holdsOnly = (element, belongs) => [...element.querySelectorAll("[name]")].every((each) => belongs(each.name));
    const row = (limit) => around(input(limit, "algorithm"), (name) => name.startsWith(limit), form);

    function place(limit, name) {
        const element = input(limit, name);
        const own = [limit + name, `${limit}${name}_unit`]; // a window's unit stands beside its number
        const found = element && around(element, (other) => own.includes(other), row(limit));
        const isWhole = found?.querySelector("label") && !found.querySelector(".ratelimiter-sentences");
        return isWhole ? found : null;
    }

    function arrange(limit) {
        const algorithm = input(limit, "algorithm");
        if (!algorithm) {
            return; // somebody who may only look
        }
        const unlimited = input(limit, "unlimited")?.checked ?? false;
        const byCalendar = columns[algorithm.value];
        const used = byCalendar ? byCalendar[input(limit, "calendar")?.value] ?? byCalendar[""] : numbers;
        const places = new Map(["algorithm", ...numbers].map((name) => [name, place(limit, name)]));
        for (const [name, found] of places) {
            if (found) {
                found.hidden = unlimited || (name !== "algorithm" && !used.includes(name));
            }
        }
    }

    function typed(limit) {
        const sent = new URLSearchParams();
        for (const [name, value] of new FormData(form)) {
            if (name.startsWith(limit)) {
                sent.append(name.slice(limit.length), value);
            } else if (OF_RULE.includes(name)) {
                sent.append(name, value);
            }
        }
        return sent;
    }

    /* Shows what the server says of the typed values, once nobody has typed for a moment. */
    async function tell(element, address, typed) {
        asked.get(element)?.abort();
        if (!element) {
            return;
        }
        const controller = new AbortController();
        const { signal } = controller;
        asked.set(element, controller);
        try {
            await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
            if (!signal.aborted) {
                const response = await fetch(`${address}?${typed()}`, { signal });
                element.textContent = response.ok ? (await response.json()).text : "";
            }
        } catch {
            if (!signal.aborted) {
                element.textContent = ""; // rather nothing than what no longer holds
            }
        }
    }

    const ask = (limit) => tell(row(limit).querySelector(".ratelimiter-sentences"), data.address, () => typed(limit));

    /* Which views the rule would match, and what its path is completed by. */
    function askViews() {
        const { path, path_kind: kind } = form.elements;
        const answer = form.querySelector(".ratelimiter-views");
        if (!path || !answer) {
            return; // somebody who may only look
        }
        path.setAttribute("list", kind.value === "route" ? "ratelimiter-routes" : "ratelimiter-paths");
        tell(answer, data.views, () => new URLSearchParams(OF_VIEWS.map((name) => [name, form.elements[name].value])));
    }

    function meet(limit) {
        const algorithm = input(limit, "algorithm");
        if (!algorithm || known.has(algorithm)) {
            return;
        }
        known.add(algorithm);
        arrange(limit);
        if (!row(limit).querySelector(".errorlist, .ratelimiter-sentences:not(:empty)")) {
            ask(limit);
        }
    }

    function hear(event) {
        const limit = limitOf(event.target);
        if (limit && input(limit, "algorithm")) {
            arrange(limit);
            ask(limit);
        } else if (OF_RULE.includes(event.target.name)) {
            limits().filter((each) => input(each, "algorithm")).forEach(ask);
        } else if (OF_VIEWS.includes(event.target.name)) {
            askViews();
        }
    }

    form.addEventListener("input", hear);
    form.addEventListener("change", hear); // all that some browsers and scripts send for a list
    window.jQuery?.(form).on("change", hear); // of lists that a theme has replaced by its own
    document.addEventListener("formset:added", () => limits().forEach(meet));
    form.addEventListener("click", () => setTimeout(() => limits().forEach(meet))); // of a theme that sends no event
    limits().forEach(meet);
    askViews();
    // A browser that comes back to the page may have filled in what was typed before.
    window.addEventListener("pageshow", () => limits().forEach(arrange));
});

/* The list of rules on a narrow screen, where each rule is a card: gives each cell the title of its column. */

document.addEventListener("DOMContentLoaded", () => {
    const titles = [...document.querySelectorAll("#result_list thead th")].map((cell) =>
        (cell.querySelector(".text") ?? cell).textContent.trim(),
    );
    for (const row of document.querySelectorAll("#result_list tbody tr")) {
        [...row.children].forEach((cell, column) => {
            if (cell.matches("td[class^=field-]")) {
                cell.dataset.title = titles[column] ?? "";
            }
        });
    }
});
