// TAIL of a step: one line per attempt, coloured by stage; after t90 is the tail.

import { draw, onClick } from "./chart.js";
import { byId, colour, options } from "./dom.js";
import { number, seconds, share, short, utc, words } from "./format.js";
import * as state from "./state.js";
import { view } from "./viewer.js";

const STAGES = ["queue", "sandbox_start", "setup", "model", "tool", "verify"];
export const asks = ["tail", "low_occupancy", "step_time", "gantt"];
export const empty = "No attempt has begun.";
export const isEmpty = (answers) => !answers[3].rows.length;

/** The step that is looked at: the one chosen, or the newest; null: the newest attempts. */
function stepOf([tail, , steps]) {
  const chosen = state.get("step");
  if (chosen) return chosen === "recent" ? null : chosen;
  const newest = tail?.rows.at(-1)?.step ?? steps?.rows.at(-1)?.step ?? null;
  return newest === null ? null : String(newest);
}

/** `answers`: of what was asked before. */
export const parameters = (answers) => ({ step: stepOf(answers) });

export function figures(answers) {
  const [tail, low, steps, gantt] = answers;
  const step = stepOf(answers);
  offer(tail.rows, steps.rows, step);
  const row = tail.rows.find((each) => String(each.step) === step);
  const attempts = gantt.rows[0] ? number(gantt.rows[0].trajectories) : "0";
  const shown = `${number(gantt.rows.length)} of ${attempts} attempts, in slices of ` +
    `${seconds(gantt.rows[0]?.slice_s)}`;
  if (row) {
    const open = Number(row.in_flight) ? `, ${number(row.in_flight)} in flight` : "";
    return [
      share(row.tail_share),
      ` of the rollouts' time came after t90 (${seconds(row.t90_s)} of ${seconds(row.t_end_s)}), of which ` +
      `${seconds(row.failed_tail_s)} waited for attempts that were lost; ${number(row.censored)} censored${open}. ` +
      `Shown: ${shown}.`,
    ];
  }
  const declared = low.rows.filter((each) => each.low_occupancy_s !== null);
  const window = declared.reduce((sum, each) => sum + each.window_s, 0);
  const idle = declared.reduce((sum, each) => sum + each.low_occupancy_s, 0);
  return [
    declared.length ? share(idle / window) : "–",
    " low occupancy: time with at most 10% of the declared concurrency in flight. Attempts were not " +
    `sampled for a step, so there is no t90 and no tail share. Shown: ${shown}.`,
  ];
}

function offer(tails, trained, chosen) {
  const steps = new Map(trained.map((row) => [row.step, `step ${row.step}`]));
  for (const row of tails) {
    steps.set(row.step, `step ${row.step}${row.tail_share === null ? "" : ` (${share(row.tail_share, 0)} tail)`}`);
  }
  const told = [...steps].sort(([one], [other]) => other - one).map(([step, text]) => [String(step), text]);
  if (chosen && !told.some(([step]) => step === chosen)) told.unshift([chosen, `step ${chosen}`]);
  options(byId("step"), [["recent", "newest attempts"], ...told], chosen ?? "recent");
}

export async function render(place, answers) {
  const [tail, , , { rows }] = answers;
  const row = tail.rows.find((each) => String(each.step) === stepOf(answers));
  const lines = rows.map((each) => each.trajectory_id);
  const stages = [...STAGES.filter((stage) => rows.some((each) => (each.bars ?? []).some((bar) => bar.stage === stage)))];
  const traces = stages.map((stage) => {
    const bars = rows.flatMap((each) => (each.bars ?? []).filter((bar) => bar.stage === stage).map((bar) => ({ each, bar })));
    return {
      type: "bar", orientation: "h", name: words(stage), marker: { color: colour(`stage-${stage}`) },
      base: bars.map(({ bar }) => bar.from_s), x: bars.map(({ bar }) => bar.to_s - bar.from_s),
      y: bars.map(({ each }) => each.trajectory_id),
      customdata: bars.map(({ each, bar }) =>
        `attempt ${short(each.trajectory_id)}, slot ${each.slot}: ${words(each.stop_reason ?? "in flight")}` +
        `<br>${words(stage)} from ${seconds(bar.from_s)} to ${seconds(bar.to_s)}`),
      hovertemplate: "%{customdata}<extra></extra>",
    };
  });
  traces.unshift(untold(rows));
  const t90 = row?.t90_s;
  const known = t90 !== null && t90 !== undefined;
  await draw(place, traces, {
    barmode: "overlay", bargap: rows.length > 40 ? 0.05 : 0.25,
    xaxis: { title: { text: `seconds since ${utc(rows[0]?.since)}` }, rangemode: "tozero" },
    yaxis: { type: "category", categoryorder: "array", categoryarray: lines, showticklabels: false,
      title: { text: "attempts" }, showgrid: false },
    shapes: known ? [{ type: "line", x0: t90, x1: t90, y0: 0, y1: 1, yref: "paper",
      line: { color: colour("ink"), width: 1.5, dash: "dash" } }] : [],
    annotations: known ? [{ x: t90, y: 1, yref: "paper", text: "t90", showarrow: false, xanchor: "left",
      yanchor: "top", font: { color: colour("ink") } }] : [],
  });
  onClick(place, (point) => view(point.y));
}

/** Under the stages, whole attempts: what stays visible is time that nobody gave a name. */
function untold(rows) {
  const last = Math.max(...rows.flatMap((each) => [each.ended_s ?? 0, each.asked_s, ...(each.bars ?? []).map((bar) => bar.to_s)]));
  return {
    type: "bar", orientation: "h", name: "unattributed", marker: { color: colour("stage-none") },
    base: rows.map((each) => each.asked_s), y: rows.map((each) => each.trajectory_id),
    x: rows.map((each) => Math.max((each.ended_s ?? last) - each.asked_s, 0)),
    customdata: rows.map((each) => `attempt ${short(each.trajectory_id)}, slot ${each.slot}: ` +
      `${words(each.stop_reason ?? "in flight")} after ${seconds((each.ended_s ?? last) - each.asked_s)}`),
    hovertemplate: "%{customdata}<extra></extra>",
  };
}
