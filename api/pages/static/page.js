// The page: starts its parts, and asks again when the book has moved.
//
// Invariant: while it runs by itself, one question is under way at a time. A page that is open for a
// week, on many screens, must not take the machine from the run; so nothing is asked while nobody
// looks, or while the book stands still.

import * as alerts from "./alerts.js";
import * as attempts from "./attempts.js";
import * as capacity from "./capacity.js";
import * as dialog from "./dialog.js";
import * as failures from "./failures.js";
import * as header from "./header.js";
import * as lag from "./lag.js";
import { Panel, REFRESH_MS } from "./panel.js";
import * as quality from "./quality.js";
import { ask } from "./server.js";
import * as state from "./state.js";
import * as steps from "./steps.js";
import * as tail from "./tail.js";
import * as throughput from "./throughput.js";

const panels = Object.entries({ steps, throughput, failures, quality, tail, capacity, lag, attempts })
  .map(([id, module]) => new Panel(id, module));
const panelOf = (id) => panels.find(({ place }) => place.id === id);
const ALERTS_MS = 10_000;
let position = null;
let alertsDue = 0;
let turn = Promise.resolve();

/** Do `work` after all that is under way. */
const then = (work) => (turn = turn.then(work).catch((error) => header.live(null, error.message)));

async function look(force = false) {
  if (document.hidden && !force) return;
  const standing = await ask("/readyz").catch((error) => header.live(null, error.message));
  if (!standing) return;
  header.live(standing);
  const moved = force || standing.position !== position;
  if (moved) await offer();
  const due = panels.filter((panel) => force || moved || panel.late);
  const work = state.get("run") ? due.map((panel) => () => refresh(panel, force)) : [];
  if (moved) work.push(balance);
  if (force || Date.now() >= alertsDue) work.unshift(warn);
  if (moved && !state.get("run")) blank();
  await inLanes(work, force ? 2 : 1);  // the server answers two at a time
  position = standing.position;
  document.body.dataset.looked = String(Number(document.body.dataset.looked ?? 0) + 1);
}

/** A panel that wasn't due when the book moved is asked later. */
async function refresh(panel, force) {
  panel.late = !force && performance.now() < panel.due;
  if (!panel.late) await panel.refresh(force);
}

/** Do all of `work`, so many at a time. */
async function inLanes(work, lanes) {
  const left = [...work];
  const lane = async () => {
    while (left.length) await left.shift()();
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}

/** The runs, and what the chosen one is. */
async function offer() {
  const as_of = state.get("as_of");
  header.runs((await ask("/v1/runs", { as_of, limit: 200 })).rows);
  const run_id = state.get("run");
  header.about(run_id ? await ask("/v1/panels/run", { run_id, as_of }) : null);
}

async function balance() {
  header.balance(await ask("/v1/conservation", { as_of: state.get("as_of"), limit: 100 }));
}

async function warn() {
  alertsDue = Date.now() + ALERTS_MS;
  alerts.render(await ask("/v1/alerts", { as_of: state.get("as_of") }));
}

/** A book without a run. */
function blank() {
  for (const panel of panels) {
    const { empty, asks = [] } = panel.module;
    panel.answers = [...asks, ""].map(() => ({ rows: [] }));
    panel.place.querySelector(".body").ariaBusy = "false";
    panel.place.querySelector(".figures").replaceChildren();
    panel.place.querySelector(".body").className = "body";
    const said = document.createElement("p");
    said.className = "empty";
    said.textContent = empty;
    panel.place.querySelector(".body").replaceChildren(said);
  }
}

function again(changes) {
  const local = Object.keys(changes).every((name) => name === "per");
  if (local) return panels.forEach((panel) => panel.draw());
  if ("step" in changes && Object.keys(changes).length === 1) return then(() => panelOf("tail").refresh(true));
  return then(() => look(true));
}

dialog.start();
header.start(() => panels.forEach((panel) => panel.draw(true)));
attempts.start(() => then(() => panelOf("attempts").refresh(true)));
await then(() => look(true));
state.onChange(again);
addEventListener("visibilitychange", () => then(() => look()));
for (;;) {
  await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
  await then(() => look());
}
