// Numbers with units, and times in the reader's zone. Null is a dash: nothing is known, not 0.

export const NOTHING = "–";
const known = (value) => value !== null && value !== undefined && !Number.isNaN(Number(value));

export const number = (value, digits = 0) =>
  known(value)
    ? Number(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    : NOTHING;

/** Three significant figures, so that 0.042 and 4,210 can stand in one column. */
export const figure = (value) =>
  known(value) ? Number(value).toLocaleString("en", { maximumSignificantDigits: 3 }) : NOTHING;

export const share = (value, digits = 1) => (known(value) ? `${number(100 * value, digits)}%` : NOTHING);

export function seconds(value) {
  if (!known(value)) return NOTHING;
  const s = Number(value);
  if (s < 600) return `${number(s, s < 10 ? 2 : 1)} s`;
  if (s < 5400) return `${number(s / 60, 1)} min`;
  return s < 172800 ? `${number(s / 3600, 1)} h` : `${number(s / 86400, 1)} days`;
}

export const time = (text) =>
  text ? new Date(text).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }) : NOTHING;
export const utc = (text) => (text ? `${new Date(text).toISOString().slice(0, 19).replace("T", " ")} UTC` : "");
export const ago = (text) => (text ? `${seconds(Math.max(0, (Date.now() - new Date(text)) / 1000))} ago` : NOTHING);
export const words = (name) => (name ?? "unknown").replaceAll("_", " ");
export const short = (id) => (id ?? "").slice(0, 8);

/** For Plotly, which draws times as they are written: the reader's own clock. */
export function local(text) {
  const at = new Date(text);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 23);
}
