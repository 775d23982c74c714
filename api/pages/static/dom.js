// Elements. Text is always set as text: what the log says can't become markup.

/** An element: `attributes` are properties, `on...` among them; children are elements or text. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name in made && name !== "role") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** The colour of a stage, blame or phase, in the theme of the moment. */
export const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() ||
  getComputedStyle(document.documentElement).getPropertyValue("--faint").trim();

/** A small square of a colour, for tables. */
export function key(name) {
  const square = el("i", { className: "key", ariaHidden: "true" });
  square.style.background = `var(--${name})`;
  return square;
}

/** A table. Columns: {name, of(row), number, title(row)}; `open(row)` makes rows a list to walk. */
export function table(columns, rows, open = null, label = "") {
  const cell = (tag, column, child, title) =>
    el(tag, { className: column.number ? "number" : "", title: title ?? "" }, child);
  const head = el("tr", {}, ...columns.map((each) => cell("th", each, each.name)));
  const body = rows.map((row, index) => {
    const made = el("tr", {}, ...columns.map((each) => cell("td", each, each.of(row), each.title?.(row))));
    if (open) {
      made.tabIndex = index ? -1 : 0;  // one stop for Tab; arrows walk the rest
      made.onclick = () => open(row);
    }
    return made;
  });
  const whole = el("table", { ariaLabel: label }, el("thead", {}, head), el("tbody", {}, ...body));
  if (open) whole.addEventListener("keydown", walk);
  return whole;
}

function walk(event) {
  const row = event.target.closest("tr[tabindex]");
  if (!row) return;
  const all = [...row.parentElement.children];
  const at = all.indexOf(row);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (event.key === "Enter" || event.key === " ") row.click();
  else if (to === undefined) return;
  else if (all[to]) {
    row.tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  }
  event.preventDefault();
}

/** Fill a select without moving a choice that is still there. [[value, text], ...] */
export function options(select, given, chosen) {
  const told = JSON.stringify([given, chosen]);
  if (select.dataset.told === told) return;
  select.dataset.told = told;
  select.replaceChildren(...given.map(([value, text]) => el("option", { value }, text)));
  select.value = chosen ?? "";
  if (select.selectedIndex < 0 && given.length) select.selectedIndex = 0;
}
