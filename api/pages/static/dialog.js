// The one dialog: a definition, or an attempt. Escape closes it, and focus goes back.

import { byId, el } from "./dom.js";

export function show(title, ...children) {
  byId("dialog-title").textContent = title;
  byId("dialog-body").replaceChildren(...children);
  if (!byId("dialog").open) byId("dialog").showModal();
  byId("close").focus();
}

export function start() {
  byId("close").onclick = () => byId("dialog").close();
  byId("dialog").addEventListener("close", () => byId("dialog-body").replaceChildren());
  byId("dialog").addEventListener("click", (event) => {
    if (event.target === byId("dialog")) byId("dialog").close();
  });
}

function copyable(sql) {
  const copy = el("button", { type: "button" }, "copy");
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(sql);
      copy.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(text);  // without https there is no clipboard
      copy.textContent = "selected: copy it";
    }
  };
  const text = el("pre", { tabIndex: 0 }, sql);
  return [copy, text];
}

/** What the figures of answers mean. */
export function define(title, answers) {
  show(title, ...answers.flatMap((answer) => [
    el("h3", {}, answer.account ? `account ${answer.account}` : answer.panel),
    el("dl", {}, ...[
      ["one row", answer.definition], ["numerator", answer.numerator],
      ["denominator", answer.denominator], ["window", answer.window],
      ["left out", answer.excluded],
      ["rule set", answer.rule_set === null ? "none" : String(answer.rule_set)],
      ["position", answer.position],
      ["SQL", "rollbook sql, /sql or any DuckDB client answers the same:"],
    ].flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text || "nothing")])),
    ...copyable(answer.sql),
  ]));
}
