// FAILURES: what failed most first, coloured by whose doing it was, and what of it taught anything.

import { draw } from "./chart.js";
import { colour } from "./dom.js";
import { number, seconds, share, words } from "./format.js";

const SHOWN = 12;
export const asks = ["failures", "contamination"];
export const empty = "No failure has been judged.";

export function isEmpty([failures, contamination]) {
  return !failures.rows.length && contamination.rows.every((row) => !Number(row.votes));
}

export function figures([{ rows }, contamination]) {
  const votes = Object.fromEntries(contamination.rows.map((row) => [row.known, Number(row.votes)]));
  const known = votes.at_decision ?? 0;
  const tries = rows.reduce((sum, row) => sum + Number(row.failures), 0);
  return [
    number(known),
    ` contaminated votes known at decision (must be 0); ${number(votes.late_evidence ?? 0)} by later ` +
    `evidence, ${number(votes.fabricated_zero ?? 0)} fabricated zeros. ${number(tries)} failures, ` +
    "retries counted.",
    known + (votes.fabricated_zero ?? 0) ? "bad" : "",
  ];
}

export async function render(place, [{ rows }]) {
  const shown = rows.slice(0, SHOWN).reverse();
  const blames = [...new Set(shown.map((row) => row.blame))];
  const label = (row) => `${words(row.stage)} · ${words(row.class)}${row.blame ? "" : " "}`;
  const traces = blames.map((blame) => {
    const mine = shown.filter((row) => row.blame === blame);
    return {
      type: "bar", orientation: "h", name: words(blame), x: mine.map((row) => row.failures),
      y: mine.map(label), marker: { color: colour(`blame-${blame ?? "unknown"}`) },
      text: mine.map((row) => `${number(row.failures)} · ${share(row.share_of_tries)}`),
      textposition: "outside", cliponaxis: false,
      customdata: mine.map((row) =>
        `${share(row.share_of_tries)} of ${number(row.tries)} tries, ended ` +
        `${number(row.trajectories_ended)} attempts; ${seconds(row.seconds)} in failing tries`),
      hovertemplate: "%{y}<br>%{x} failures, %{customdata}<extra></extra>",
    };
  });
  const most = Math.max(...shown.map((row) => row.failures));
  await draw(place, traces, {
    barmode: "stack", bargap: shown.length < 4 ? 0.7 : 0.2, margin: { l: 150, r: 16, t: 6, b: 28 },
    xaxis: { title: { text: "failures · share of tries" }, rangemode: "tozero", range: [0, most * 1.25] },
    yaxis: { categoryorder: "array", categoryarray: shown.map(label), tickfont: { size: 10 } },
  });
}
