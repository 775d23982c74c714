// POLICY QUALITY: pass@1 by version. A scope of its own is a panel of its own: other tasks, other
// attempts or other caps make another figure, whatever its name.

import { draw } from "./chart.js";
import { colour, el } from "./dom.js";
import { number, share, words } from "./format.js";

const SCOPE = ["dataset", "split", "subset", "subset_sha256", "tasks", "attempts_per_task", "temperature",
  "top_p", "top_k", "output_cap_tokens", "context_cap_tokens", "turn_cap", "clock_cap_s", "scaffold",
  "pass_threshold"];

export const asks = ["quality"];
export const many = true;
export const empty = "No evaluation. An evaluation is a run of its own that names this one as its parent.";

const scoped = (row) => JSON.stringify(SCOPE.map((name) => row[name]));

export function figures([{ rows }]) {
  const last = rows.at(-1);
  return [
    share(last.pass_at_1_macro, 2),
    ` pass@1 of version ${number(last.policy_version)}, 95% interval ${share(last.bootstrap_low)} to ` +
    `${share(last.bootstrap_high)}; missing as 0 or 1: ${share(last.macro_if_missing_failed, 2)} to ` +
    `${share(last.macro_if_missing_passed, 2)} (coverage ${share(last.coverage)}).`,
  ];
}

export async function render(place, [{ rows }]) {
  const scopes = [...new Set(rows.map(scoped))];
  const kept = [...place.children];
  const parts = scopes.map((_, index) => kept[index]?.matches(".scope") ? kept[index]
    : el("div", { className: "scope" }, el("p"), el("div", { className: "chart" })));
  if (parts.some((part, index) => part !== kept[index]) || kept.length !== parts.length) {
    place.replaceChildren(...parts);
  }
  for (const [index, scope] of scopes.entries()) {
    const mine = rows.filter((row) => scoped(row) === scope);
    const [caption, chart] = parts[index].children;
    caption.textContent = says(mine[0]);
    caption.title = SCOPE.map((name) => `${words(name)}: ${mine[0][name] ?? "undeclared"}`).join("\n");
    await one(chart, mine);
  }
}

const says = (row) => `${row.dataset ?? "undeclared"} / ${row.split ?? "undeclared"}: ${number(row.tasks)} tasks × ` +
  `${number(row.attempts_per_task)}`;

async function one(place, rows) {
  const x = rows.map((row) => String(row.policy_version));
  const y = rows.map((row) => 100 * row.pass_at_1_macro);
  const bars = (low, high) => ({
    type: "data", symmetric: false, array: rows.map((row, i) => Math.max(0, 100 * row[high] - y[i])),
    arrayminus: rows.map((row, i) => Math.max(0, y[i] - 100 * row[low])),
  });
  const trace = (name, color, width, cap, error) => ({
    type: "scatter", mode: "markers", name, x, y, marker: { color, size: 8 },
    error_y: { ...error, color, thickness: width, width: cap },
    customdata: rows.map((row) => `${row.name}: ${number(row.passed)} of ${number(row.valid)} valid, ` +
      `${number(row.slots)} slots; published ${share(row.published, 2)}`),
    hovertemplate: "version %{x}: %{y:.2f}%<br>%{customdata}<extra></extra>",
  });
  await draw(place, [
    trace("missing as 0 or 1", colour("faint"), 7, 0, bars("macro_if_missing_failed", "macro_if_missing_passed")),
    trace("95% interval", colour("accent"), 2, 6, bars("bootstrap_low", "bootstrap_high")),
  ], {
    xaxis: { type: "category", title: { text: "policy version" } },
    yaxis: { title: { text: "pass@1, %" }, rangemode: "tozero" },
  });
}
