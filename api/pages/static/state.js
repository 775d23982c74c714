// What the reader has chosen. It is kept behind the # of the address, which no server is sent.

const chosen = new URLSearchParams(location.hash.slice(1));
const listeners = [];

/** A choice: run, split, rules, as_of, step, per; null where nothing was chosen. */
export const get = (name) => chosen.get(name);

/** Choose; null takes a choice back. */
export function set(changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") chosen.delete(name);
    else chosen.set(name, value);
  }
  history.replaceState(null, "", `#${chosen}`);
  listeners.forEach((listener) => listener(changes));
}

/** Call `listener` with what was changed. */
export const onChange = (listener) => listeners.push(listener);

/** Parameters that every question has. */
export const scope = () => ({ run_id: get("run"), rule_set: get("rules"), as_of: get("as_of") });
