"use strict";

/* The forecast of a rule: moves the line that is the quota, counts the callers above it, and puts the number into the
   form. Every word and every number comes from the server. Without this script, buttons do the same. */

document.addEventListener("DOMContentLoaded", () => {
    const panel = document.querySelector(".ratelimiter-quota-line");
    const number = document.getElementById("id_forecast-quota");
    const range = document.getElementById("ratelimiter-line-range");
    if (!panel || !number || !range) {
        return;
    }
    const STEPS = 1000;
    const top = Number(range.dataset.top);
    const shown = new Intl.NumberFormat(document.documentElement.lang || undefined, { maximumFractionDigits: 2 });
    const figure = panel.querySelector(".ratelimiter-rates");
    const [sampled, steps] = [Number(figure.dataset.sampled), JSON.parse(figure.dataset.steps)];
    const [picture, line] = [figure.querySelector("svg"), figure.querySelector(".ratelimiter-quota")];

    /* Rates lie far apart, so the line moves by their logarithm. */
    const place = (quota) => Math.log1p(quota) / Math.log1p(top);
    const quotaAt = (share) => Math.max(1, Math.round(Math.expm1(share * Math.log1p(top))));

    function text(quota) {
        const beyond = steps.filter(([rate]) => rate > quota);
        const count = beyond.length ? beyond[beyond.length - 1][1] : 0;
        const values = { count: shown.format(count), all: shown.format(sampled), percent: shown.format(sampled ? (100 * count) / sampled : 0) };
        return panel.dataset.all.replace(/%\((\w+)\)s/g, (_, name) => values[name]).replace("%%", "%");
    }

    /* isMoved: the number is another than the server's, whose count is exact; that of the steps is nearly so. */
    function draw(isMoved) {
        const quota = Number(number.value);
        if (!(quota >= 1)) {
            return;
        }
        range.value = Math.round(STEPS * place(quota));
        range.setAttribute("aria-valuetext", `${shown.format(quota)}/${range.dataset.unit}`);
        const y = `${Math.max(0, 100 - 100 * place(quota))}%`;
        line.setAttribute("y1", y);
        line.setAttribute("y2", y);
        figure.querySelectorAll("[data-rate]").forEach((bar) => bar.classList.toggle("ratelimiter-above", Number(bar.dataset.rate) > quota));
        if (isMoved) {
            panel.querySelector("output").textContent = text(quota);
        }
    }

    function set(quota) {
        number.value = quota;
        draw(true);
    }

    function follow(event) {
        const { bottom, height } = picture.getBoundingClientRect();
        set(quotaAt(Math.min(1, Math.max(0, (bottom - event.clientY) / height))));
    }

    picture.addEventListener("pointerdown", (event) => {
        picture.setPointerCapture(event.pointerId);
        follow(event);
    });
    picture.addEventListener("pointermove", (event) => {
        if (event.buttons) {
            follow(event);
        }
    });
    panel.querySelector(".ratelimiter-take")?.addEventListener("click", (event) => {
        const input = document.getElementById(`id_${panel.dataset.input}`);
        if (!input) {
            return;
        }
        event.preventDefault();
        input.value = number.value;
        input.dispatchEvent(new Event("input", { bubbles: true }));
        input.dispatchEvent(new Event("change", { bubbles: true }));
        panel.querySelector(".ratelimiter-taken").textContent = panel.querySelector(".ratelimiter-taken").dataset.text;
    });

    const count = panel.querySelector(".ratelimiter-count");
    if (count) { // the bars of another limit are known to the server alone
        document.getElementById("id_forecast-limit").addEventListener("change", () => count.click());
        count.setAttribute("hidden", "");
    }
    number.addEventListener("input", () => draw(true));
    range.addEventListener("input", () => set(quotaAt(range.value / STEPS)));
    range.closest("[hidden]")?.removeAttribute("hidden");
    draw(false);

    // django-grappelli makes fields for text of ranges, numbers and dates when the page is ready.
    window.addEventListener("load", () => setTimeout(() => { range.type = "range"; }));
});
