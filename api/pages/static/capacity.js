// CAPACITY: used against the limit of each pool, and which of them holds the run up.

import { draw } from "./chart.js";
import { colour, el, table } from "./dom.js";
import { figure, local, number, share, words } from "./format.js";

export const asks = ["capacity"];
export const split = true;
export const empty = "No sample of an engine or a pool. A rollout's monitor records them.";
const LINES = ["accent", "blame-infrastructure", "stage-tool", "stage-verify", "stage-queue", "stage-sandbox_start"];

const name = (row) => (row.kind === "engine" ? `KV of ${row.resource.replace(/^https?:\/\//, "")}` : words(row.resource));

function newest(rows) {
  const seen = new Map();
  for (const row of rows) if (!seen.has(row.resource + row.kind)) seen.set(row.resource + row.kind, row);
  return [...seen.values()];
}

const binding = (rows) => rows.find((row) => row.binding)?.binding;

export function figures([{ rows }]) {
  const limit = binding(rows);
  const minutes = new Set(rows.filter((row) => row.binding === limit).map((row) => row.minute)).size;
  const all = new Set(rows.map((row) => row.minute)).size;
  return [
    words(limit ?? "unknown"),
    limit === "none" ? " binds: nobody waited in the newest minute."
      : ` binds in the newest minute, and in ${number(minutes)} of the ${number(all)} minutes shown.`,
  ];
}

export async function render(place, [{ rows }]) {
  if (!place.querySelector(".chart")) {
    place.replaceChildren(el("div", { className: "list" }), el("div", { className: "chart" }));
  }
  place.querySelector(".list").replaceChildren(table([
    { name: "pool", of: name },
    { name: "used", number: true, of: (row) => figure(row.used) },
    { name: "limit", number: true, of: (row) => figure(row.capacity) },
    { name: "%", number: true, of: (row) => share(row.used_share, 0) },
    { name: "waiting", number: true, of: (row) => number(row.waiting_max ?? row.queued) },
  ], newest(rows), null, "pools in the newest minute"));
  const pools = newest(rows).filter((row) => row.used_share !== null).slice(0, LINES.length);
  await draw(place.querySelector(".chart"), pools.map((pool, index) => {
    const mine = rows.filter((row) => row.kind === pool.kind && row.resource === pool.resource).reverse();
    return {
      type: "scatter", mode: mine.length > 1 ? "lines" : "markers", name: name(pool),
      x: mine.map((row) => local(row.minute)), y: mine.map((row) => 100 * row.used_share),
      line: { color: colour(LINES[index]), width: 2, dash: ["solid", "dot", "dash"][index % 3] },
      customdata: mine.map((row) => `${figure(row.used)} of ${figure(row.capacity)}; binding: ${words(row.binding)}`),
      hovertemplate: "%{x}: %{y:.1f}%<br>%{customdata}<extra></extra>",
    };
  }), { yaxis: { title: { text: "used, % of limit" }, range: [0, 105] }, xaxis: { type: "date" } });
}
