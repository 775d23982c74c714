// Asks the server. Invariant: an answer that hasn't changed is neither sent nor drawn again.

const kept = new Map();  // address -> {etag, data}
const MOST_KEPT = 60;

/** The JSON at a path of this server. Throws an Error that says what is wrong. */
export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  const address = query ? `${path}?${query}` : path;
  const before = kept.get(address);
  const headers = before ? { "If-None-Match": before.etag } : {};
  const answer = await fetch(address, { headers, cache: "no-store", credentials: "same-origin" });
  if (answer.status === 304) return before.data;
  if (answer.status === 401) throw new Error("the token is no longer this book's: load the page again");
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok && answer.status !== 503) throw new Error(data.detail ?? `status ${answer.status}`);
  if (answer.status === 503 && data.ready === undefined) throw new Error(data.detail ?? "not now");
  const etag = answer.headers.get("ETag");
  if (etag) {
    kept.delete(address);
    kept.set(address, { etag, data });
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return data;
}

/** What a panel is drawn from: without the position, which changes with every fact. */
export const content = (answer) => JSON.stringify({ ...answer, position: null, next_cursor: null });
