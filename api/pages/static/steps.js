// STEP TIME: stacked by phase, what has no name hatched, what was exposed of the rollouts a dot.

import { draw, onClick } from "./chart.js";
import { colour } from "./dom.js";
import { number, seconds, time, utc, words } from "./format.js";
import * as state from "./state.js";

const PHASES = ["waiting", "loading", "logprobs", "forward_backward", "optimizer", "publishing",
  "engine_switch", "checkpoint", "evaluation", "unattributed"];

export const asks = ["step_time"];
export const empty = "No step has completed. A run of rollouts or an evaluation has none; the first " +
  "bar appears when the trainer ends its first step.";

export function figures([{ rows }]) {
  const last = rows.at(-1);
  const slow = last.why_slow ? `; slow: ${words(last.why_slow)} (+${seconds(last.why_slow_s)})` : "";
  return [
    `${seconds(last.wall_s)}`,
    ` step ${last.step}, of which exposed ${seconds(last.exposed_s)}, unattributed ` +
    `${seconds(last.unattributed_s)}${slow}. ${number(last.trajectories)} attempts trained on, ` +
    `${number(last.trained_tokens)} tokens.`,
  ];
}

export async function render(place, [{ rows }]) {
  const x = rows.map((row) => `${row.step}${row.retrained ? " again" : ""}`);
  const hover = rows.map((row) => `step ${row.step}, ended ${time(row.ended_at)} (${utc(row.ended_at)})`);
  const bars = PHASES.filter((phase) => rows.some((row) => row[`${phase}_s`] > 0)).map((phase) => ({
    type: "bar", name: words(phase), x, y: rows.map((row) => row[`${phase}_s`]), customdata: hover,
    marker: {
      color: colour(`phase-${phase}`),
      ...(phase === "unattributed" && {
        color: "rgba(0,0,0,0)", line: { color: colour("phase-unattributed"), width: 1 },
        pattern: { shape: "/", fgcolor: colour("phase-unattributed"), size: 5 },
      }),
    },
    hovertemplate: `%{customdata}<br>${words(phase)} %{y:.2f} s<extra></extra>`,
  }));
  const exposed = {
    type: "scatter", mode: "markers", name: "exposed", x, y: rows.map((row) => row.exposed_s),
    marker: { color: colour("ink"), size: 6, line: { color: colour("panel"), width: 1 } },
    hovertemplate: "exposed: rollouts that the trainer waited for, %{y:.2f} s<extra></extra>",
  };
  await draw(place, [...bars, exposed], {
    barmode: "stack", xaxis: { type: "category", title: { text: "step" }, nticks: 12 },
    yaxis: { title: { text: "s" }, rangemode: "tozero" },
  });
  onClick(place, (point) => state.set({ step: String(rows[point.pointNumber].step) }));
}
