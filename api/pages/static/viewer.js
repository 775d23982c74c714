// One attempt: its timeline, turns, tool calls, reward, judgements by their rule, group decision.

import { draw } from "./chart.js";
import { colour, el, key, table } from "./dom.js";
import { number, seconds, short, time, utc, words } from "./format.js";
import { show } from "./dialog.js";
import { ask } from "./server.js";
import * as state from "./state.js";

const MOST = 500;  // rows of one table; an attempt has at most a few hundred turns

export async function view(id) {
  const title = `attempt ${short(id)}`;
  show(title, el("p", { className: "say" }, "asking"));
  try {
    const told = await ask(`/v1/trajectories/${id}`, { as_of: state.get("as_of") });
    const chart = el("div", { className: "chart" });
    show(title, ...sections(told, chart));
    await timeline(chart, told.timeline);
  } catch (error) {
    show(title, el("p", { role: "alert", className: "bad" }, error.message));
  }
}

function sections(told, chart) {
  const { row } = told;
  return [
    facts([
      ["id", row.trajectory_id], ["task", `${row.task_id ?? "–"}, slot ${row.slot}`],
      ["began", `${time(row.started_at)} (${utc(row.started_at)})`],
      ["took", `${seconds(row.wall_s)}; model ${seconds(row.model_s)}, tools ${seconds(row.tool_s)}`],
      ["ended", row.state === "finished" ? `${words(row.stop_reason)}${row.error_type ? `, ${row.error_type}` : ""}` : "in flight"],
      ["reward", row.reward === null ? "none" : `${number(row.reward, 3)} by ${row.verifier ?? "unknown"}`],
    ]),
    part("Timeline", chart),
    part("Judgements, with the rule that made each", listed(told.judgements, [
      { name: "rule set", number: true, of: (each) => number(each.rule_set) },
      { name: "outcome", of: (each) => words(each.outcome) },
      { name: "cause", of: (each) => (each.cause_class ? `${words(each.cause_stage)}: ${words(each.cause_class)}` : "–") },
      { name: "blame", of: (each) => (each.blame ? el("span", {}, key(`blame-${each.blame}`), words(each.blame)) : "–") },
      { name: "trainable", of: (each) => (each.trainable ? "yes" : "no") },
      { name: "errors seen", number: true, of: (each) => number(each.errors?.length ?? 0) },
      { name: "evidence", of: (each) => clipped(evidence(each)), title: evidence },
    ])),
    part("Group decision", listed(told.decisions, [
      { name: "decision", of: (each) => words(each.decision) + (each.drop_reason ? `: ${words(each.drop_reason)}` : "") },
      { name: "votes", of: (each) => (each.votes ? "yes" : `no: ${words(each.exclusion_reason)}`) },
      { name: "reward", number: true, of: (each) => number(each.reward, 3) },
      { name: "advantage", number: true, of: (each) => number(each.advantage, 3) },
      { name: "group", of: (each) => short(each.group_id), title: (each) => each.group_id },
    ])),
    part("Rewards", listed(told.rewards, [
      { name: "verifier", of: (each) => `${each.verifier ?? "–"} ${each.verifier_version ?? ""}` },
      { name: "value", number: true, of: (each) => number(each.value, 3) },
      { name: "tests", number: true, of: (each) => `${number(each.tests_passed)} passed, ${number(each.tests_failed)} failed` },
      { name: "took", number: true, of: (each) => seconds(each.verify_s) },
      { name: "error", of: (each) => each.error_type ?? "–" },
    ])),
    part("Turns", listed(told.turns, [
      { name: "turn", number: true, of: (each) => number(each.turn_no) },
      { name: "ended", of: (each) => time(each.ended_at), title: (each) => utc(each.ended_at) },
      { name: "prompt tokens", number: true, of: (each) => number(each.prompt_tokens) },
      { name: "sampled tokens", number: true, of: (each) => number(each.completion_tokens) },
      { name: "version", number: true, of: (each) => number(each.newest_version) },
      { name: "took", number: true, of: (each) => seconds(each.client_s) },
      { name: "end", of: (each) => words(each.error_type ?? each.finish_reason ?? "–") },
    ])),
    part("Tool calls", listed(told.tool_calls, [
      { name: "call", number: true, of: (each) => number(each.tool_call_no) },
      { name: "tool", of: (each) => each.name ?? "–" },
      { name: "arguments", of: (each) => clipped(each.arguments), title: (each) => each.arguments },
      { name: "exit", number: true, of: (each) => number(each.exit_code) },
      { name: "took", number: true, of: (each) => seconds(each.wall_s) },
      { name: "output", of: (each) => clipped(each.error_type ?? each.output_head), title: (each) => each.output_head },
    ])),
  ];
}

const evidence = (judged) => judged.evidence?.join("\n") || "its own facts";
const clipped = (text) => (text && text.length > 70 ? `${text.slice(0, 70)}…` : text ?? "–");
const part = (title, ...children) => el("section", {}, el("h3", {}, title), ...children);
const facts = (pairs) => el("dl", {}, ...pairs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));

function listed(rows, columns) {
  if (!rows.length) return el("p", { className: "none" }, "none recorded");
  const more = rows.length > MOST ? el("p", { className: "say" }, `the first ${MOST} of ${number(rows.length)}`) : null;
  return el("div", { className: "scroll", tabIndex: 0 }, table(columns, rows.slice(0, MOST)), more);
}

async function timeline(place, told) {
  const rows = told.filter((row) => row.started_at && row.stage);
  if (!rows.length) return place.replaceWith(el("p", { className: "none" }, "no stage was timed"));
  const since = Math.min(...rows.map((row) => new Date(row.started_at)));
  const stages = ["verify", "tool", "model", "setup", "sandbox_start", "queue"];
  await draw(place, stages.map((stage) => {
    const mine = rows.filter((row) => row.stage === stage);
    return {
      type: "bar", orientation: "h", name: words(stage), y: mine.map(() => words(stage)),
      base: mine.map((row) => (new Date(row.started_at) - since) / 1000),
      x: mine.map((row) => Math.max(row.seconds ?? 0, 0.001)), marker: { color: colour(`stage-${stage}`) },
      customdata: mine.map((row) => `${row.label ?? ""} ${row.number ?? ""} ${row.error_type ?? ""}`),
      hovertemplate: "%{customdata}<br>%{x:.2f} s<extra></extra>",
    };
  }), { barmode: "overlay", showlegend: false, xaxis: { title: { text: "seconds since it was asked for" } },
    margin: { l: 90, r: 8, t: 4, b: 34 }, yaxis: { type: "category", categoryorder: "array", categoryarray: stages.map(words) } });
}
