// The client of the public API: every request of the console goes through here.
//
// The key lives in this module's memory and nowhere else. It is neither stored nor put into an address, and it is gone
// with the page. Event streams, which cannot send a header, get a short-lived token instead.

let key = null;
let tokens = Promise.resolve(null);

/** Tells `unauthorized`, `down` with what is wrong, and `up`. */
export const told = new EventTarget();

export class ApiError extends Error {
  constructor(status, code, message, detail) {
    super(message);
    this.status = status;
    this.code = code;
    this.detail = detail ?? {};
  }
}

export const hasKey = () => key !== null;
export function useKey(secret) { key = secret; }
export function forgetKey() { key = null; mine = null; }

let mine = null;
/** Asks once who we are here; what a key may not do is not offered. */
export async function meetServer() { mine = await get("/v0/self"); return mine; }
export const self = () => mine;
export const may = (...scopes) => mine === null || scopes.every((scope) => mine.key.scopes.includes(scope));

export const at = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;
export const topicPath = (name) => `/v0/topics/${encodeURIComponent(name)}`;
export const streamPath = (name) => `/v1/stream/${name.split("/").map(encodeURIComponent).join("/")}`;
/** Whether /v0 takes the name without being told that a stream is meant. */
export const isTopicName = (name) => /^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$/.test(name);

function address(path, query) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") said.set(name, value);
  }
  const text = said.toString();
  return at(path) + (text ? `?${text}` : "");
}

/** Asks, and gives the answer whole; raises `ApiError` for anything but a success. */
export async function ask(method, path, { query, body, raw, headers, signal } = {}) {
  const sent = { ...headers };
  if (key !== null) sent.authorization = `Bearer ${key}`;
  if (body !== undefined || raw !== undefined) sent["content-type"] ??= "application/json";
  let answer;
  try {
    answer = await fetch(address(path, query), {
      method, headers: sent, body: raw ?? (body === undefined ? undefined : JSON.stringify(body)), signal,
      credentials: "omit", cache: "no-store", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell("down", "The server does not answer. Retrying.");
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (answer.ok) { tell("up"); return answer; }
  const error = await refusal(answer);
  if (error.status === 401) told.dispatchEvent(new CustomEvent("unauthorized"));
  else if (error.code === "not_ready") tell("down", `The server is replaying its log: ${percent(error.detail.replay_progress)}.`);
  else if (error.code === "shutting_down" || error.detail.reason === "shutting_down") tell("down", "The server is shutting down.");
  throw error;
}

async function refusal(answer) {
  try {
    const { error } = JSON.parse(await answer.text());
    return new ApiError(answer.status, error.code, error.message, error.detail);
  } catch {
    return new ApiError(answer.status, "unknown", `The server answered ${answer.status}.`);
  }
}

function tell(name, detail) { told.dispatchEvent(new CustomEvent(name, { detail })); }
const percent = (part) => `${Math.floor((part ?? 0) * 100)} % done`;

export async function json(method, path, options) { return JSON.parse(await (await ask(method, path, options)).text()); }
/** The same with every number as it was written: for what somebody else has put there. */
export async function exactly(method, path, options) { return exact(await (await ask(method, path, options)).text()); }
export const get = (path, query, signal, headers) => json("GET", path, { query, signal, headers });
export const post = (path, body, more) => json("POST", path, { body, ...more });
export const put = (path, body, more) => json("PUT", path, { body, ...more });
export const del = (path, query) => json("DELETE", path, { query });

/** A number as it was written, where this language would show another one. */
export class Exact {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
  valueOf() { return Number(this.text); }
  toJSON() { return typeof JSON.rawJSON === "function" ? JSON.rawJSON(this.text) : Number(this.text); }
}

/** Parses JSON and keeps every number as it was written. */
export function exact(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || context?.source === undefined || String(value) === context.source) return value;
    return new Exact(context.source);
  });
}

const TOKEN_MS = 300_000;

/** The token that replaces the key in the URL of an event stream; null without keys. */
export async function token() {
  if (key === null) return null;
  tokens = tokens.then(async (last) => {
    if (last !== null && last.of === key && last.expires_ms - Date.now() > TOKEN_MS / 2) return last;
    return { ...await post("/v0/tokens", { ttl_ms: TOKEN_MS }), of: key };
  });
  try {
    return (await tokens).token;
  } catch (error) {
    tokens = Promise.resolve(null);
    throw error;
  }
}

/** After a restart the old token means nothing. */
export function dropToken() { tokens = Promise.resolve(null); }
