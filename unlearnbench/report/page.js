"use strict";
const root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// tables: a click on a head sorts, numbers as numbers, what is missing last
const read = cell => {
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (["", "-", "null"].includes(text)) return null;
  const number = Number(text.replace(/^T(?=\d)/, "").replace(/,/g, ""));
  return Number.isNaN(number) ? text.toLowerCase() : number;
};
const order = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map(row => [read(row.cells[column]), row]);
      rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : (up ? 1 : -1) * order(a, b));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}
for (const input of document.querySelectorAll("input.filter")) {
  const rows = [...document.getElementById(input.getAttribute("aria-controls")).tBodies[0].rows];
  const count = input.nextElementSibling;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach(row => { row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word)); });
    count.textContent = words.length ? `${rows.filter(row => !row.hidden).length} of ${rows.length} rows` : "";
  });
}

// plots: what a mark stands for, beside the pointer
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("figure svg g > title")) {
  const mark = title.parentNode;
  mark.dataset.tip = title.textContent;
  title.remove();
  mark.addEventListener("pointermove", event => {
    tip.textContent = mark.dataset.tip;
    tip.style.visibility = "visible";
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 18}px`;
  });
  mark.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
}
