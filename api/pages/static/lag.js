// LAG and SELECTION: how old the policy of trained attempts was, and how what was dropped differs.

import { draw } from "./chart.js";
import { colour, el, table } from "./dom.js";
import { figure, number, seconds, share, words } from "./format.js";

export const asks = ["lag", "selection"];
export const split = true;
export const empty = "No group has been decided, and nothing was trained on.";
export const isEmpty = (answers) => answers.every((answer) => !answer.rows.length);

export function figures([lag, selection]) {
  const all = lag.rows.reduce((sum, row) => sum + row.trajectories, 0);
  const total = (row) => Number(row.lag_in_flight ?? 0) + Number(row.lag_in_queue ?? 0);
  const worst = Math.max(...lag.rows.map(total), 0);
  const mean = lag.rows.reduce((sum, row) => sum + row.trajectories * total(row), 0) / all;
  const dropped = selection.rows.filter((row) => row.selection !== "taken");
  const lost = dropped.reduce((sum, row) => sum + row.trajectories, 0);
  return [
    all ? figure(mean) : "–",
    ` versions of lag in the mean, ${all ? number(worst) : "–"} at most, of ${number(all)} trained attempts. ` +
    `${number(lost)} attempts of decided groups were not taken.`,
  ];
}

export async function render(place, [lag, selection]) {
  if (!place.querySelector(".chart")) {
    place.replaceChildren(el("div", { className: "chart" }), el("div", { className: "list" }));
  }
  const against = (value) => (value === null || value === 1 ? "" : ` (${value > 1 ? "+" : ""}${number(100 * (value - 1))}%)`);
  place.querySelector(".list").replaceChildren(table([
    { name: "attempts", of: (row) => (row.selection === "taken" ? "taken" : `dropped: ${words(row.reason)}`) },
    { name: "count", number: true, of: (row) => `${number(row.trajectories)} · ${share(row.share)}` },
    { name: "tokens", number: true, of: (row) => figure(row.mean_tokens) + against(row.tokens_against_taken) },
    { name: "time", number: true, of: (row) => seconds(row.mean_s) + against(row.seconds_against_taken) },
    { name: "passed", number: true, of: (row) => share(row.pass_rate) },
  ], selection.rows, null, "what was taken and dropped; tokens and time are means, against what was taken"));
  const kinds = [["in flight", "lag_in_flight", "accent"], ["in queue", "lag_in_queue", "stage-sandbox_start"]];
  await draw(place.querySelector(".chart"), kinds.map(([name, column, color]) => {
    const counts = new Map();
    for (const row of lag.rows) {
      const versions = row[column] === null ? "unknown" : String(row[column]);
      counts.set(versions, (counts.get(versions) ?? 0) + row.trajectories);
    }
    const told = [...counts].sort(([one], [other]) => Number(one) - Number(other));
    return {
      type: "bar", name, x: told.map(([versions]) => versions), y: told.map(([, count]) => count),
      marker: { color: colour(color) },
      hovertemplate: `%{y} attempts lagged %{x} versions ${name}<extra></extra>`,
    };
  }), { barmode: "group", xaxis: { type: "category", title: { text: "versions behind" } },
    yaxis: { title: { text: "attempts" } } });
}
