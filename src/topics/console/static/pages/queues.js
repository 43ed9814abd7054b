// Queues, found among the topics page by page.

import { get, topicPath } from "../api.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { topicLink } from "../links.js";
import { badge, button, empty, table } from "../parts.js";
import { shares } from "./topic_queue.js";

const PAGE = 1000;
const AT_ONCE = 20;
const LOOK_MS = 3000;
const REFRESHED = 40;

export default async function render(context) {
  const found = new Map();
  const letters = new Map();
  let cursor = "";
  let looked = 0;
  const list = table("Queues", [
    { title: "Queue", class: "name", cell: (one) => [h("a", { href: topicLink(one.topic, "queue") }, one.topic), one.queue.paused ? [" ", badge("paused", "warn")] : null] },
    { title: "Ready", class: "number", cell: (one) => count(one.queue.ready) },
    { title: "In flight", class: "number", cell: (one) => count(one.queue.in_flight) },
    { title: "Delayed", class: "number", cell: (one) => count(one.queue.delayed) },
    { title: "Dead letters", class: "number", cell: (one) => waiting(one.topic) },
    { title: "Dead-lettered so far", class: "number wide", cell: (one) => count(one.queue.dead_lettered) },
    { title: "Jobs", class: "shares-cell wide", cell: (one) => (one.count ? shares(one.queue) : h("span.soft", "empty")) },
  ]);
  const none = h("div", { hidden: true }, empty("No queues", "A queue is a topic whose config has the type queue. Create one under Topics."));
  const more = button("Search further", search, { hidden: true });
  const progress = h("span.soft", { role: "status" });
  context.put("Queues", h("div.row", progress, more), list.element, none);
  await search();
  await context.every(LOOK_MS, refresh);

  async function search() {
    for (let i = 0; i < AT_ONCE && cursor !== null && !context.signal.aborted; i += 1) {
      const page = await get("/v0/topics", { page_size: PAGE, cursor }, context.signal);
      looked += page.topics.length;
      for (const one of page.topics) if (one.queue) found.set(one.topic, one);
      cursor = page.next_cursor ?? null;
      draw();
    }
  }

  /** Reads the first queues again, and their dead-letter topics. */
  async function refresh() {
    for (const name of [...found.keys()].slice(0, REFRESHED)) {
      const one = await state(name);
      if (one?.queue === undefined) { found.delete(name); continue; }
      found.set(name, one);
      const dead = one.config.dead_letter;
      if (dead) letters.set(name, { count: (await state(dead))?.count ?? 0 }); else letters.delete(name);
    }
    draw();
  }

  function state(name) {
    return get(topicPath(name), { touch: false }, context.signal).catch((error) => { if (error.name === "AbortError") throw error; return null; });
  }

  function waiting(queue) {
    const one = letters.get(queue);
    if (one === undefined) return "";
    return one.count ? h("a.waiting", { href: topicLink(queue, "queue", { state: "dead" }) }, count(one.count)) : "0";
  }

  function draw() {
    list.show([...found.values()]);
    list.element.hidden = !found.size;
    none.hidden = found.size > 0 || cursor !== null;
    more.hidden = cursor === null;
    progress.textContent = cursor === null ? "" : `Looked at ${count(looked)} topics so far.`;
  }
}
