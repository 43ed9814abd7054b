// Starts the page: asks for the key if the server needs one, and shows the page that the address names.

import { ApiError, forgetKey, hasKey, meetServer, told, useKey } from "./api.js";
import { fill, h } from "./dom.js";
import { openPalette } from "./palette.js";
import { empty, failure } from "./parts.js";
import { refreshNavigation, shell } from "./shell.js";
import { signIn } from "./sign_in.js";

// A page is loaded when it is first looked at.
const PAGES = {
  overview: () => import("./pages/overview.js"),
  topics: () => import("./pages/topics.js"),
  topic: () => import("./pages/topic.js"),
  queues: () => import("./pages/queues.js"),
  schedules: () => import("./pages/schedules.js"),
  consumers: () => import("./pages/consumers.js"),
  routers: () => import("./pages/routers.js"),
  search: () => import("./pages/search.js"),
  schema: () => import("./pages/schemas.js"),
  pipeline: () => import("./pages/pipeline.js"),
  settings: () => import("./pages/settings.js"),
};

const app = document.getElementById("app");
let frame = null;
let leaving = new AbortController();

/** `#/topic/a%2Fb/config?seq=7` as its parts. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  let parts;
  try { parts = rest.map(decodeURIComponent); } catch { parts = rest; }
  return { page: page || "overview", parts, query: new URLSearchParams(query ?? "") };
}

/** A dialog belongs to the page that opened it. Closing is cancelling. */
function closeDialogs() {
  for (const box of document.querySelectorAll("dialog[open]")) box.close();
}

async function show() {
  closeDialogs();
  if (frame === null) return;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { page, parts, query } = place();
  frame.select(page, parts);
  const load = Object.hasOwn(PAGES, page) ? PAGES[page] : null;
  if (load === null) return frame.put("Not found", empty("This page does not exist", h("a", { href: "#/" }, "Go to the overview")));
  try {
    const { default: render } = await load();
    if (signal.aborted) return;
    await render(context(parts, query, signal));
  } catch (error) {
    if (!signal.aborted && error.name !== "AbortError") frame.put("Something went wrong", failure(error));
    if (!(error instanceof ApiError) && error.name !== "AbortError") console.error(error);
  }
}

/** The context of a page: the parts of its address, where to draw, and a timer that stops when the page is left or hidden. */
function context(parts, query, signal) {
  return {
    parts, query, signal,
    put: (title, ...children) => frame.put(title, ...children),
    /** Calls `look` now and every `ms`, one call at a time; errors of an unreachable server are retried. */
    async every(ms, look) {
      const turn = async (first) => {
        if (signal.aborted) return;
        if (!document.hidden || first) {
          try { await look(); } catch (error) { if (!passes(error, first)) throw error; }
        }
        if (!signal.aborted) setTimeout(turn, ms, false);
      };
      await turn(true);
    },
    /** Changes the query of the address without leaving the page. */
    note(values) {
      for (const [name, value] of Object.entries(values)) {
        if (value === null || value === undefined || value === "") query.delete(name);
        else query.set(name, value);
      }
      const text = query.toString();
      history.replaceState(null, "", location.hash.split("?")[0] + (text ? `?${text}` : ""));
    },
  };
}

/** Whether the error is temporary. A request that is refused the first time stays refused. */
function passes(error, first) {
  if (error.name === "AbortError") return true;
  return error instanceof ApiError && !(first && (error.status === 403 || error.status === 404));
}

async function begin() {
  try {
    await meetServer();
  } catch (error) {
    if (error.status === 401) return askForKey(hasKey() ? "The server does not accept this key." : null);
    if (error.status !== 403) {
      if (frame === null) fill(app, h("p.lonely", { role: "status" }, error.message));
      return setTimeout(begin, 700);
    }
  }
  frame = shell(app, { onleave: hasKey() ? leave : null });
  refreshNavigation(frame);
  show();
}

function askForKey(problem) {
  leaving.abort();
  frame = null;
  forgetKey();
  signIn(app, problem, (secret) => { useKey(secret); begin(); });
}

function leave() { askForKey(null); }

told.addEventListener("unauthorized", () => { if (frame !== null) askForKey("This key is no longer valid."); });
told.addEventListener("down", (event) => frame?.trouble(event.detail));
told.addEventListener("up", () => frame?.trouble(null));
addEventListener("hashchange", () => { if (location.hash !== "#main") show(); });
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && frame !== null) {
    event.preventDefault();
    openPalette();
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const first = document.querySelector("#main [data-slash]");
    if (first) { event.preventDefault(); first.focus(); }
  }
});
begin();
