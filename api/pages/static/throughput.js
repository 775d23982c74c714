// THROUGHPUT: what completed, by what it was bought with. Spans of other resources are bands, and no
// line crosses from one into the next: it would be a trend of the resources.

import { draw } from "./chart.js";
import { colour } from "./dom.js";
import { figure, local, number, share } from "./format.js";
import * as state from "./state.js";

export const asks = ["throughput", "throughput_course"];
export const empty = "No attempt has ended. Attempts count once they end with a scored, trainable " +
  "reward; until then there is no rate.";

const PER = {
  hour: { unit: "/ h", of: () => 1, column: "equivalents_per_hour" },
  node: { unit: "/ inference node-hour", of: (span) => span.engine_nodes,
    column: "equivalents_per_engine_node_hour" },
  slot: { unit: "/ sandbox slot-hour", of: (span) => span.sandbox_slots,
    column: "equivalents_per_sandbox_slot_hour" },
};
const per = () => PER[state.get("per")] ?? PER.hour;

const counted = (count, noun) =>
  count === null ? `undeclared ${noun}s` : `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const bought = (span) =>
  span.span === 0 ? "nothing declared"
    : `${counted(span.engine_nodes, "node")}, ${counted(span.sandbox_slots, "slot")}`;

export function figures([{ rows, rule_set }]) {
  const spans = rows.filter((row) => row.attempted > 0);
  if (!spans.length) return ["–", " nothing has ended yet"];
  const last = spans.at(-1);
  const judged = rule_set === null ? " No rule set has judged the run, so nothing counts as completed." : "";
  return [
    figure(last[per().column]),
    ` completed ${per().unit} on ${bought(last)}: ${number(last.completed)} of ${number(last.attempted)} ` +
    `ended (${share(last.completed / last.attempted)}), ${number(last.straddled)} straddle a change.` +
    judged,
  ];
}

export async function render(place, [{ rows: spans }, { rows: course }]) {
  const { unit, of } = per();
  const lines = spans.map((span, index) => {
    const mine = course.filter((row) => row.span === span.span);
    const amount = of(span);
    const middle = (row) => new Date((new Date(row.began_at).getTime() + new Date(row.ended_at).getTime()) / 2);
    return {
      type: "scatter", mode: mine.length > 1 ? "lines+markers" : "markers", name: bought(span),
      x: mine.map((row) => local(middle(row))),
      y: mine.map((row) => (amount ? row.completed_per_hour / amount : null)),
      customdata: mine.map((row) =>
        `${number(row.completed)} of ${number(row.attempted)} in ${number(row.seconds)} s; ` +
        `${middle(row).toISOString().slice(0, 19).replace("T", " ")} UTC`),
      line: { color: colour("accent"), dash: index % 2 ? "dot" : "solid" }, marker: { size: 4 },
      hovertemplate: `%{y:.4s} ${unit}<br>%{customdata}<extra></extra>`, connectgaps: false,
    };
  });
  const bands = spans.map((span, index) => ({
    type: "rect", xref: "x", yref: "paper", y0: 0, y1: 1, layer: "below",
    x0: local(span.started_at), x1: local(span.ended_at ?? span.observed_until),
    fillcolor: index % 2 ? colour("band") : "rgba(0,0,0,0)",
    line: { width: spans.length > 1 ? 1 : 0, color: colour("line"), dash: "dot" },
  }));
  const ms = (span) => new Date(span.ended_at ?? span.observed_until) - new Date(span.started_at);
  const whole = spans.reduce((sum, span) => sum + ms(span), 0);
  const labels = spans.filter((span) => ms(span) > 0.15 * whole).map((span) => ({
    x: local(span.started_at), y: 1, xref: "x", yref: "paper", xanchor: "left", yanchor: "bottom",
    text: bought(span), showarrow: false, font: { size: 10, color: colour("faint") },
  }));
  await draw(place, lines, {
    showlegend: false, shapes: bands, annotations: labels, margin: { l: 46, r: 8, t: 18, b: 30 },
    xaxis: { type: "date" }, yaxis: { title: { text: unit }, rangemode: "tozero" },
  });
}
