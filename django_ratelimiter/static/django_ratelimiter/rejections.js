"use strict";

/* The page of recent rejections updates by itself: it fetches its rows every few seconds while it is in sight and nobody
   has paused it. Every word comes from the server. Without this script, the link "Refresh" does the same. */

document.addEventListener("DOMContentLoaded", () => {
    const rows = document.getElementById("ratelimiter-rejections");
    const status = document.getElementById("ratelimiter-rejections-status");
    const button = document.getElementById("ratelimiter-rejections-pause");
    if (!rows || !status || !button) {
        return;
    }
    const TIMEOUT_MS = 10000;
    let timer;
    let paused = false;
    let latest = latestOf(rows);

    /* The greatest number of a row, or 0. Numbers are times in microseconds. */
    function latestOf(part) {
        return Math.max(0, ...[...part.querySelectorAll("[data-number]")].map((row) => Number(row.dataset.number)));
    }

    function schedule() {
        clearTimeout(timer);
        if (!paused && !document.hidden) {
            timer = setTimeout(update, 1000 * Number(rows.dataset.every));
        }
    }

    async function update() {
        clearTimeout(timer);
        try {
            const response = await fetch(rows.dataset.url, { signal: AbortSignal.timeout(TIMEOUT_MS) });
            if (!response.ok || response.redirected) { // such as to the login
                throw new Error(response.status);
            }
            const text = await response.text();
            if (!paused && !isSelected()) {
                show(new DOMParser().parseFromString(text, "text/html"));
            }
        } catch {
            say(rows.dataset.failed);
        }
        schedule();
    }

    function show(page) {
        const added = [...page.querySelectorAll("[data-number]")].filter((row) => Number(row.dataset.number) > latest);
        const link = rows.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
        const region = document.activeElement?.getAttribute("role") === "region";
        const left = rows.querySelector("[role=region]")?.scrollLeft ?? 0;
        latest = Math.max(latest, latestOf(page));
        rows.replaceChildren(...page.body.childNodes);
        const shown = rows.querySelector("[role=region]");
        if (shown) {
            shown.scrollLeft = left;
        }
        if (link) { // whoever was here with the keyboard stays here
            [...rows.querySelectorAll("a")].find((each) => each.getAttribute("href") === link)?.focus();
        } else if (region && document.activeElement === document.body) {
            shown?.focus();
        }
        say(added.length ? rows.dataset.new.replace("{count}", added.length) : "");
    }

    /* Somebody is about to copy something. */
    function isSelected() {
        const selection = getSelection();
        return !selection.isCollapsed && rows.contains(selection.anchorNode);
    }

    /* A reader hears what changes, and nothing every few seconds. */
    function say(text) {
        if (status.textContent !== text) {
            status.textContent = text;
        }
    }

    button.hidden = false;
    button.addEventListener("click", () => {
        paused = !paused;
        [button.textContent, button.dataset.resume] = [button.dataset.resume, button.textContent];
        say(paused ? rows.dataset.paused : "");
        if (!paused) {
            update();
        } else {
            clearTimeout(timer);
        }
    });
    document.addEventListener("visibilitychange", () => (document.hidden || paused ? clearTimeout(timer) : update()));
    schedule();
});
