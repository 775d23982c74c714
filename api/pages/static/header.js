// The header: what is looked at, how far behind the log, whether the books balance, the theme.

import { byId, el, options, table } from "./dom.js";
import { ago, number, short, time, utc, words } from "./format.js";
import { show } from "./dialog.js";
import * as state from "./state.js";

const THEMES = ["auto", "light", "dark"];

export function start(redraw) {
  byId("run").onchange = () => state.set({ run: byId("run").value, rules: null, step: null });
  byId("split").onchange = () => state.set({ split: byId("split").value, run: null, rules: null, step: null });
  byId("rule-set").onchange = () => state.set({ rules: byId("rule-set").value });
  byId("step").onchange = () => state.set({ step: byId("step").value });
  byId("per").onchange = () => state.set({ per: byId("per").value });
  byId("as-of").onchange = () => {
    const chosen = byId("as-of").value;
    state.set({ as_of: chosen ? new Date(chosen).toISOString() : null });
  };
  byId("now").onclick = () => {
    byId("as-of").value = "";
    state.set({ as_of: null });
  };
  byId("per").value = state.get("per") ?? "hour";
  if (state.get("as_of")) byId("as-of").value = new Date(Date.parse(state.get("as_of")) -
    new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 16);
  startTheme(redraw);
}

function startTheme(redraw) {
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = `☾ ${theme}`;
  };
  let theme = localStorage.getItem("theme") ?? "auto";
  apply(theme);
  byId("theme").onclick = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("theme", theme);
    apply(theme);
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

/** How far the book is behind its log; null: nobody answers. */
export function live(standing, error) {
  const mark = byId("live");
  const held = state.get("as_of");
  mark.className = !standing ? "away" : standing.failure ? "away" : held || standing.behind > 0 ? "behind" : "live";
  mark.querySelector(".said").textContent = !standing ? `no answer: ${error}`
    : standing.failure ? `not projecting: ${standing.failure}`
    : held ? "held: as of then"
    : `live, ${number(standing.lag_s, 1)} s behind the log`;
  mark.title = standing ? `${number(standing.behind)} records behind; ${standing.position}` : "";
}

const split = (run) => [run.dataset, run.split].filter(Boolean).join(" / ") || "undeclared";

/** Offer the runs; chooses the newest training run where none is chosen. Gives the chosen one. */
export function runs(rows) {
  const splits = [...new Set(rows.map(split))];
  options(byId("split"), [["", "any"], ...splits.map((each) => [each, each])], state.get("split") ?? "");
  const offered = rows.filter((run) => !state.get("split") || split(run) === state.get("split"));
  if (!offered.some((run) => run.run_id === state.get("run"))) {
    const first = offered.find((run) => run.kind === "train") ?? offered[0];
    if (first) state.set({ run: first.run_id });
  }
  options(byId("run"), offered.map((run) => [run.run_id, `${run.name ?? "unnamed"} (${run.kind}, ${short(run.run_id)})`]),
    state.get("run"));
}

/** What the chosen run is and whether it goes on. */
export function about(answer) {
  const run = answer?.rows[0];
  if (!run) {
    byId("about").textContent = "";
    return options(byId("rule-set"), [["", "none"]], "");
  }
  const judged = run.rule_sets ?? [];
  options(byId("rule-set"), judged.length ? [["", `newest (${judged.at(-1)})`], ...judged.map((each) => [String(each), String(each)])]
    : [["", "none has judged"]], state.get("rules") ?? "");
  const line = byId("about");
  line.textContent = `${going(run)} ${words(run.kind)} run ${run.name ?? ""} of ${run.model ?? "an undeclared model"}, declared ` +
    `${time(run.declared_at)}: ${number(run.trajectories_finished)} of ${number(run.trajectories_started)} attempts ended, ` +
    `${number(run.steps)} steps, policy version ${number(run.policy_version)}.`;
  line.title = `${line.textContent} ${run.run_id}; declared ${utc(run.declared_at)}`;
}

function going(run) {
  if (!run.producers) return "Nobody says that it goes on: no producer has a pulse in the log.";
  if (!run.producers_open) return `Ended ${time(run.last_alive_at)} (${ago(run.last_alive_at)}): every producer closed.`;
  const silent = run.unseen_until && new Date(run.unseen_until) < Date.now() - 60000 && !state.get("as_of");
  return silent ? `Silent since ${time(run.last_alive_at)}: ${number(run.producers_open)} producers never closed.`
    : `Going on: ${number(run.producers_open)} producers record.`;
}

/** Whether every identity of the books holds. */
export function balance(page) {
  const broken = page.rows.length;
  const more = page.next_cursor ? "+" : "";
  const mark = byId("balance");
  mark.textContent = broken ? `books don't balance: ${broken}${more}` : "books balance ✓";
  mark.className = broken ? "bad" : "good";
  mark.onclick = () => show("Conservation: identities that don't hold", broken
    ? table([
      { name: "identity", of: (row) => row.identity }, { name: "run", of: (row) => short(row.run_id) },
      { name: "step", number: true, of: (row) => number(row.step) },
      { name: "expected", number: true, of: (row) => row.expected ?? "–" },
      { name: "found", number: true, of: (row) => row.found ?? "–" }, { name: "detail", of: (row) => row.detail ?? "" },
    ], page.rows)
    : el("p", {}, "Every slot has one disposition, every vote is valid, every step's batch exists, and no " +
      "producer's sequence has a hole. SQL: FROM conservation gives no row."),
  el("p", { className: "say" }, `At ${page.position}.`));
}

