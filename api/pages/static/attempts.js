// TRAJECTORIES: a page of them, newest first. A million are asked for a page at a time.

import { byId, el, key, table } from "./dom.js";
import { number, seconds, short, time, utc, words } from "./format.js";
import { ask } from "./server.js";
import * as state from "./state.js";
import { view } from "./viewer.js";

const AT_ONCE = 50;
let cursors = [];  // of the pages before this one, the newest first
let next = null;

export const empty = "No attempt has begun, or none has this outcome.";
export const isEmpty = ([page]) => !page.rows.length;

export async function fetchAll() {
  const { run_id, as_of } = state.scope();
  const cursor = cursors.at(-1) ?? null;
  const page = await ask("/v1/trajectories", {
    run_id, as_of, limit: AT_ONCE, cursor, outcome: byId("outcome").value,
  });
  next = page.next_cursor;
  return [page];
}

export function start(refresh) {
  const turn = (change) => () => {
    change();
    refresh();
  };
  byId("older").onclick = turn(() => next && cursors.push(next));
  byId("newer").onclick = turn(() => { cursors = []; });
  byId("outcome").onchange = turn(() => { cursors = []; });
  state.onChange((changes) => {
    if ("run" in changes || "as_of" in changes) cursors = [];
  });
}

export function figures([page]) {
  byId("older").disabled = !next;
  byId("newer").disabled = !cursors.length;
  const from = cursors.length * AT_ONCE;
  const held = cursors.length ? " Pages behind the newest stay as the book was when you left it." : "";
  return [`${number(from + 1)}–${number(from + page.rows.length)}`,
    ` of the attempts that began last. Enter or click opens one; arrow keys walk.${held}`];
}

export async function render(place, [page]) {
  const at = document.activeElement?.closest?.("tr[data-id]")?.dataset.id;
  const scrolled = place.scrollTop;
  const cause = (row) =>
    row.cause_class
      ? el("span", {}, key(`blame-${row.blame ?? "unknown"}`), `${words(row.cause_class)} (${words(row.blame)})`)
      : "";
  const made = table([
    { name: "began", of: (row) => time(row.started_at), title: (row) => utc(row.started_at) },
    { name: "attempt", of: (row) => short(row.trajectory_id), title: (row) => row.trajectory_id },
    { name: "task", of: (row) => row.task_id ?? "–" },
    { name: "slot", number: true, of: (row) => number(row.slot) },
    { name: "outcome", of: (row) => words(row.outcome ?? row.state) },
    { name: "stop", of: (row) => words(row.stop_reason ?? "–") },
    { name: "cause", of: cause },
    { name: "reward", number: true, of: (row) => number(row.reward, 2) },
    { name: "turns", number: true, of: (row) => number(row.turns) },
    { name: "tokens", number: true, of: (row) => number(row.completion_tokens) },
    { name: "wall", number: true, of: (row) => seconds(row.wall_s) },
  ], page.rows, (row) => view(row.trajectory_id), "trajectories");
  [...made.tBodies[0].rows].forEach((row, index) => { row.dataset.id = page.rows[index].trajectory_id; });
  place.replaceChildren(made);
  place.scrollTop = scrolled;
  if (at) made.querySelector(`tr[data-id="${at}"]`)?.focus({ preventScroll: true });
}
