// The alerts line: none, or what is over its threshold, the worst first.

import { byId, el } from "./dom.js";
import { figure, number, short, words } from "./format.js";

export function render(answer) {
  const place = byId("alerts");
  if (!answer.rows.length) {
    place.replaceChildren(el("p", { className: "none" }, `no alert: ${number(answer.measures)} measures under their thresholds`));
    return;
  }
  place.replaceChildren(el("ul", {}, ...answer.rows.map((row) => el("li", { className: row.level },
    el("span", { className: "level" }, row.level),
    el("span", {}, `${words(row.alert)} ${figure(row.value)} over ${figure(row.threshold)}` +
      `${row.out_of === null ? "" : ` of ${number(row.out_of)}`}: ${row.subject}` +
      `${row.run_id ? `, run ${short(row.run_id)}` : ""}. ${row.advice ? `${row.advice[0].toUpperCase()}${row.advice.slice(1)}. ` : ""}`,
    el("code", {}, `FROM ${row.view}`)),
  ))));
}
