"use strict";
// Sorting, hints, runs on demand and the theme. Without it, the page only lacks the runs.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const dialog = document.getElementById("runs");
  const said = document.getElementById("said");
  document.documentElement.classList.add("scripted-page");

  function make(tag, text, attributes = {}) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // ---- Sorting: each heading becomes a button; cells without a value stay at the end.
  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function keyOf(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.classList.contains("number") ? null : cell.textContent.trim();
  }

  function compare(a, b) {
    return typeof a === "number" && typeof b === "number" ? a - b : words.compare(a, b);
  }

  function sort(table, column, direction) {
    const body = table.tBodies[0];
    const sign = direction === "ascending" ? 1 : -1;
    const rows = Array.from(body.rows, (row) => ({ row, key: keyOf(row, column) }));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return sign * compare(a.key, b.key);
    });
    body.append(...rows.map(({ row }) => row));
    for (const heading of table.tHead.rows[0].cells) heading.removeAttribute("aria-sort");
    const heading = table.tHead.rows[0].cells[column];
    heading.setAttribute("aria-sort", direction);
    said.textContent = `Sorted by ${heading.textContent.trim()}, ${direction}.`;
  }

  function makeSortable(table) {
    Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
      const button = make("button", undefined, { type: "button", class: "sort" });
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const first = heading.dataset.first || "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        sort(table, column, heading.getAttribute("aria-sort") === first ? other : first);
      });
    });
  }

  // ---- Numbers: one stop for the Tab key per group, arrows within it.
  function rows(group) {
    return Array.from(group.querySelectorAll("tbody tr"), (row) =>
      Array.from(row.querySelectorAll("button.value")));
  }

  function rove(group) {
    const values = group.querySelectorAll("button.value");
    values.forEach((value, index) => { value.tabIndex = index ? -1 : 0; });
    group.addEventListener("focusin", ({ target }) => {
      if (!target.matches("button.value")) return;
      values.forEach((value) => { value.tabIndex = value === target ? 0 : -1; });
    });
    group.addEventListener("keydown", (event) => {
      const from = event.target;
      if (!from.matches("button.value")) return;
      const lines = rows(group);
      const y = lines.findIndex((line) => line.includes(from));
      const x = lines[y].indexOf(from);
      const next = {
        ArrowDown: () => lines[y + 1]?.[x],
        ArrowUp: () => lines[y - 1]?.[x],
        ArrowRight: () => lines[y][x + 1],
        ArrowLeft: () => lines[y][x - 1],
        Home: () => lines[y][0],
        End: () => lines[y][lines[y].length - 1],
      }[event.key]?.();
      if (!next) return;
      event.preventDefault();
      next.focus();
    });
  }

  // ---- Hints: the seeds of a number, on hover and on focus.
  const points = (score) => (score === null ? "–" : score.toFixed(2));

  function counted(values) {
    const counts = new Map();
    for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
    return Array.from(counts, ([value, count]) => `${value}\u00a0×${count}`).join(", ");
  }

  function hint(cell) {
    const results = data.cells[cell];
    const lines = [];
    if (results.seeds) {
      lines.push(`${results.unit}s: ${results.seeds.map(([, score]) => points(score)).join("; ")}`);
    } else if (results.runs) {
      const chosen = results.runs.filter((run) => run[5]);
      if (chosen.length) {
        const few = chosen.slice(0, 10).map((run) => points(run[4])).join("; ");
        const more = chosen.length > 10 ? `; and ${chosen.length - 10} more` : "";
        lines.push(`${chosen.length === 1 ? "Seed" : "Seeds"}: ${few}${more}`);
        const rates = chosen.map((run) => data.rates[run[1]]).filter((rate) => rate !== "none");
        if (rates.length) lines.push(`Learning rates: ${counted(rates)}`);
      }
      const lost = results.runs.filter((run) => run[2]).map((run) => data.status[run[2]]);
      if (lost.length) lines.push(`Without score: ${counted(lost)}`);
    }
    if (results.paper) lines.push(results.paper);
    return lines.join("\n") || "No runs";
  }

  let shown = null;

  function show(value) {
    hide();
    shown = value;
    tip.textContent = hint(value.dataset.cell);
    tip.hidden = false;
    value.setAttribute("aria-describedby", "tip");
    place();
  }

  function place() {
    if (!shown) return;
    const box = shown.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above < 8 ? box.bottom + 6 : above}px`;
  }

  function hide() {
    tip.hidden = true;
    shown?.removeAttribute("aria-describedby");
    shown = null;
  }

  for (const [enter, leave] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(enter, ({ target }) => {
      const value = target.closest("button.value");
      if (value) show(value);
    });
    document.addEventListener(leave, ({ target }) => { if (target.closest("button.value")) hide(); });
  }
  document.addEventListener("scroll", place, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // ---- Runs: all runs of one number, with links to their records.
  const columns = ["Seed", "Learning rate", "Validation", "Test", "State", "Chosen", "Record"];

  function runRow([seed, rate, status, validation, test, chosen, id]) {
    const row = make("tr");
    if (chosen) row.className = "best";
    const number = (text, value) => {
      const cell = make("td", text, { class: "number" });
      if (value !== null) cell.dataset.value = value;
      return cell;
    };
    const record = make("td");
    if (data.status[status] === "missing") record.textContent = "–";
    else record.append(make("a", id.slice(0, 12),
      { href: `${data.records}/${encodeURIComponent(id)}/result.json` }));
    row.append(
      number(String(seed), seed), number(data.rates[rate], rate),
      number(points(validation), validation), number(points(test), test),
      make("td", data.status[status]), make("td", chosen ? "yes" : "no"), record,
    );
    return row;
  }

  function averageRow([seed, score]) {
    const row = make("tr");
    row.append(make("td", String(seed), { class: "number", "data-value": seed }),
      make("td", points(score), { class: "number", "data-value": score }));
    return row;
  }

  function openRuns(cell) {
    const results = data.cells[cell];
    const [title, metric] = data.datasets[cell % data.datasets.length];
    const arm = data.arms[Math.floor(cell / data.datasets.length)];
    const heading = dialog.querySelector("h2");
    heading.replaceChildren(make("bdi", arm), " on ", make("bdi", title));
    const text = results.seeds
      ? `One score for each ${results.unit.toLowerCase()}, in percent points.`
      : `Scores are ${metric}, in percent points. Bold: chosen on validation for its seed.`;
    dialog.querySelector("p").textContent = [text, results.paper].filter(Boolean).join(" ");
    const table = make("table");
    const head = table.createTHead().insertRow();
    const names = results.seeds ? [results.unit, "Mean score"] : columns;
    head.append(...names.map((name) => make("th", name, { scope: "col" })));
    const body = table.createTBody();
    body.append(...(results.seeds || []).map(averageRow), ...(results.runs || []).map(runRow));
    makeSortable(table);
    dialog.querySelector(".scroll").replaceChildren(table);
    hide();
    dialog.showModal();
  }

  document.addEventListener("click", ({ target }) => {
    const value = target.closest("button.value");
    if (value) openRuns(Number(value.dataset.cell));
  });
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", ({ target }) => { if (target === dialog) dialog.close(); });

  // ---- Theme: system, light, dark.
  const theme = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || "system";
    const next = themes[(themes.indexOf(now) + 1) % themes.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    theme.textContent = `Theme: ${next}`;
  });

  // ---- Printing: folded parts open, and close again afterwards.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    for (const details of opened) details.open = true;
  });
  window.addEventListener("afterprint", () => { for (const details of opened) details.open = false; });

  document.querySelectorAll("table[data-sortable]").forEach(makeSortable);
  document.querySelectorAll("[data-rove]").forEach(rove);
})();
