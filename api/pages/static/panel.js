// The frame of a panel: asks, draws only what has changed, says how old it is and what it means.
//
// Invariants: a panel asks at most every REFRESH_MS, and rests REST times as long as its answers took
// (the server keeps costly ones as long, so asking sooner would tell nothing new), but never longer
// than MOST_REST_MS; a panel that fails says so in its own place, and keeps what it had drawn.

import { byId, el } from "./dom.js";
import { time, utc } from "./format.js";
import { define } from "./dialog.js";
import { ask, content } from "./server.js";
import * as state from "./state.js";

export const REFRESH_MS = 2000;
const REST = 5;
const MOST_REST_MS = 15_000;

export class Panel {
  /** `module`: asks or fetchAll, figures, render, empty; perhaps isEmpty, parameters, many, split. */
  constructor(id, module) {
    this.module = module;
    this.place = byId(id);
    this.title = this.place.querySelector("h2").textContent;
    this.answers = null;
    this.drawn = "";
    this.due = 0;
    this.place.querySelector(".define").onclick = () => this.answers && define(this.title, this.defined());
  }

  defined() {
    return this.answers.filter((answer) => answer.sql);
  }

  /** Ask again, if it is time; `force`: now. */
  async refresh(force = false) {
    const began = performance.now();
    let took = 0;
    if (!force && began < this.due) return;
    try {
      const asked = state.get("run");
      const answers = await this.fetch();
      took = performance.now() - began;
      if (asked !== state.get("run")) return;
      this.answers = answers;
      await this.draw();
      this.say("");
    } catch (error) {
      this.say(error.message, true);
    } finally {
      this.place.querySelector(".body").ariaBusy = "false";
      this.due = performance.now() + Math.min(MOST_REST_MS, Math.max(REFRESH_MS - 100, REST * took));
    }
  }

  async fetch() {
    if (this.module.fetchAll) return this.module.fetchAll();
    const answers = [];
    for (const name of this.module.asks) {  // one after another: the projector needs the machine
      answers.push(await ask(`/v1/panels/${name}`, { ...state.scope(), ...this.module.parameters?.(answers) }));
    }
    return answers;
  }

  /** Draw what was answered last, if it isn't what is there; `force`: in any case. */
  async draw(force = false) {
    if (!this.answers) return;
    const told = JSON.stringify([this.answers.map(content), state.get("step"), state.get("per")]);
    if (!force && told === this.drawn) return;
    const body = this.place.querySelector(".body");
    const nothing = this.module.isEmpty ? this.module.isEmpty(this.answers) : !this.answers[0].rows.length;
    if (nothing) {
      this.place.querySelector(".figures").replaceChildren();
      body.className = "body";
      body.replaceChildren(el("p", { className: "empty" }, this.module.empty));
    } else {
      await this.fill(body);
    }
    this.drawn = told;
    this.place.dataset.draws = String(Number(this.place.dataset.draws ?? 0) + 1);
    const when = this.place.querySelector(".when");
    when.dataset.at = new Date().toISOString();
  }

  async fill(body) {
    const [main, rest, tone] = this.module.figures(this.answers);
    this.place.querySelector(".figures").replaceChildren(el("b", { className: tone ?? "" }, main), rest);
    body.className = `body${this.module.split ? " split" : ""}${this.module.many ? " many" : ""}`;
    body.querySelector(".empty")?.remove();
    if (this.module.split || this.module.many || this.module.fetchAll) return this.module.render(body, this.answers);
    let chart = body.querySelector(".chart");
    if (!chart) body.append((chart = el("div", { className: "chart" })));
    return this.module.render(chart, this.answers);
  }

  say(text, wrong = false) {
    const when = this.place.querySelector(".when");
    const at = when.dataset.at;
    when.className = `when${wrong ? " bad" : ""}`;
    when.textContent = wrong ? text : this.answers?.some((answer) => answer.left_out) ? "shortened"
      : at ? `changed ${time(at).split(", ").at(-1)}` : "";
    when.title = at ? utc(at) : "";
  }
}
