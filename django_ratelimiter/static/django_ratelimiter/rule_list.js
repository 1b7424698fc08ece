"use strict";

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
