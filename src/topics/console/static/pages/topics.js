// Topics and streams, a page at a time: search by a part of the name, sort order, total.

import { get, may, put as putConfig, topicPath } from "../api.js";
import { Rate, Trail, spark } from "../charts.js";
import { h } from "../dom.js";
import { bytes, count, plural, rate, short } from "../format.js";
import { topicLink } from "../links.js";
import { badge, button, dialog, empty, field, failure, newId, select, table, textField, toast } from "../parts.js";

const SIZE = 50;
const LOOK_MS = 2000;
const MANY = 2000;
/** Counting and sorting many topics is work for the server: the list is then refreshed this many times less often. */
const SELDOM = 5;
const SORTS = { name: "by name", "count:desc": "most records first", "bytes:desc": "largest first", "head_seq:desc": "highest seq first", "count:asc": "fewest records first", "bytes:asc": "smallest first" };

/** The kinds of a topic, as badges. */
export const kinds = (one) => [
  one.queue ? badge("queue", "accent") : null,
  one.content_type ? h("span.badge", { title: one.content_type }, "stream") : null,
];

export default async function render(context) {
  const { query } = context;
  const shown = new Map();
  // The cursors of the pages before this one.
  let trail = [""];
  let next = null;
  let asked = 0;
  let looks = 0;
  let total = 0;
  let typing = null;
  const search = textField({ type: "search", placeholder: "Search topics", value: query.get("q") ?? "", "aria-label": "Search topics", "data-slash": true, oninput: () => { clearTimeout(typing); typing = setTimeout(restart, 150); } });
  const sort = select(SORTS, Object.hasOwn(SORTS, query.get("sort")) ? query.get("sort") : "name", { "aria-label": "Sort order", onchange: restart });
  const system = h("input", { type: "checkbox", id: newId("system"), checked: query.get("system") === "1", onchange: restart });
  const list = table("Topics", [
    { title: "Name", class: "name", cell: (one) => h("a", { href: topicLink(one.topic) }, one.topic) },
    { title: "Kind", cell: (one) => [kinds(one), one.durable ? badge("durable") : null] },
    { title: "Live records", class: "number", cell: (one) => h("span", { title: count(one.count) }, short(one.count)) },
    { title: "Size", class: "number", cell: (one) => bytes(one.bytes) },
    { title: "Head seq", class: "number wide", cell: (one) => count(one.head_seq) },
    { title: "Activity", class: "spark-cell wide", cell: (one) => activity(one).line.element },
    { title: "Rate", class: "number", cell: (one) => activity(one).text },
  ]);
  const back = button("Back", () => turn(-1), { disabled: true });
  const on = button("Next", () => turn(1), { disabled: true });
  const where = h("span.soft", { role: "status" });
  const none = h("div", { hidden: true });
  context.put("Topics and streams",
    h("div.beside", may("admin") ? button("New topic", create, { kind: "primary" }) : null),
    h("div.row", h("div.grow", search), sort, h("span.row.near", system, h("label", { for: system.id }, "System topics"))),
    h("div.row", where, h("span.grow"), back, on), list.element, none);
  await context.every(LOOK_MS, () => {
    looks += 1;
    return total > MANY && looks % SELDOM !== 1 ? null : load();
  });

  function activity(one) {
    const known = shown.get(one.topic);
    if (known?.epoch === one.epoch) return known;
    const fresh = { epoch: one.epoch, rate: new Rate(), trail: new Trail(30), line: spark(`Records per second of ${one.topic}`, { slots: 30 }), text: h("span.soft", "") };
    shown.set(one.topic, fresh);
    return fresh;
  }

  async function load() {
    const turnOf = (asked += 1);
    const page = await get("/v0/topics", { contains: search.value.trim(), sort: sort.value, page_size: SIZE, cursor: trail.at(-1), streams: true, system: system.checked || null, total: true }, context.signal);
    if (turnOf !== asked) return;
    next = page.next_cursor ?? null;
    total = page.total.value;
    for (const one of page.topics) {
      const { rate: look, trail: seen, line, text } = activity(one);
      const now = look.look(one.head_seq);
      if (now !== null) { seen.push(now); line.update(seen.values, `Records per second of ${one.topic}: now ${short(now)}`); text.textContent = now ? rate(now) : "–"; }
    }
    list.show(page.topics);
    list.element.hidden = page.topics.length === 0;
    none.hidden = page.topics.length > 0;
    none.replaceChildren(search.value.trim() ? empty("No match", `No topic has “${search.value.trim()}” in its name.`) : empty("No topics", "Append a record to a name to create a topic."));
    back.disabled = trail.length < 2;
    on.disabled = next === null;
    const first = (trail.length - 1) * SIZE + 1;
    where.textContent = (page.total.relation === "gte" ? "at least " : "") + plural(total, "topic") + (page.topics.length ? `, ${count(first)} to ${count(first + page.topics.length - 1)} shown` : "")
      + (page.total.relation === "gte" && sort.value !== "name" ? `; sorted among the first ${count(total)} by name` : "");
  }

  function restart() {
    trail = [""];
    shown.clear();
    context.note({ q: search.value.trim(), sort: sort.value === "name" ? "" : sort.value, system: system.checked ? "1" : "" });
    load().catch(() => {});
  }

  function turn(step) {
    if (step < 0) trail.pop(); else if (next !== null) trail.push(next);
    shown.clear();
    load().catch(() => {});
  }

  async function create() {
    const name = textField({ placeholder: "orders" });
    const type = select({ log: "log: read by cursor", queue: "queue: claimed by workers" }, "log");
    const durability = select({ disk: "disk: survives the end of the process", fsync: "fsync: survives a power cut", remote: "remote: survives the loss of the machine", memory: "memory: the newest records may be lost", ephemeral: "ephemeral: in memory only" }, "disk");
    const form = h("div.stack", field("Name", name, "1 to 255 of A-Z a-z 0-9 . _ : -"), field("Type", type), field("Durability", durability));
    if (await dialog("New topic", form, [["Cancel", null], ["Create", true, "primary"]]) !== true) return;
    try {
      const made = await putConfig(topicPath(name.value.trim()), { type: type.value, durability: durability.value });
      toast(made.created ? `${made.topic} is created.` : `${made.topic} existed already and has this config now.`);
      location.hash = topicLink(made.topic);
    } catch (error) {
      dialog("The topic was not created", failure(error), [["Close", null]]);
    }
  }
}
