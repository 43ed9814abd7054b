// Topics and streams by name, a page at a time, however many there are.

import { get, may, put as putConfig, topicPath } from "../api.js";
import { Rate, Trail, spark } from "../charts.js";
import { h } from "../dom.js";
import { bytes, count, rate, short } from "../format.js";
import { topicLink } from "../links.js";
import { badge, button, dialog, empty, field, failure, select, table, textField, toast } from "../parts.js";

const SIZE = 50;
const LOOK_MS = 2000;

export default async function render(context) {
  const { query } = context;
  const shown = new Map();
  // The cursors of the pages before this one: going back needs no other memory.
  let trail = [""];
  let next = null;
  let asked = 0;
  const prefix = textField({ type: "search", placeholder: "Names that begin with…", value: query.get("prefix") ?? "", "aria-label": "Names that begin with", "data-slash": true, oninput: restart });
  const list = table("Topics", [
    { title: "Name", class: "name", cell: (one) => h("a", { href: topicLink(one.topic) }, one.topic) },
    { title: "", cell: (one) => [one.queue ? badge("queue", "accent") : null, one.durable ? badge("fsync") : null] },
    { title: "Live records", class: "number", cell: (one) => h("span", { title: count(one.count) }, short(one.count)) },
    { title: "Size", class: "number", cell: (one) => bytes(one.bytes) },
    { title: "Head", class: "number", cell: (one) => count(one.head_seq) },
    { title: "Since you look", class: "spark-cell", cell: (one) => activity(one).line.element },
    { title: "Now", class: "number", cell: (one) => activity(one).text },
  ]);
  const back = button("Back", () => turn(-1), { disabled: true });
  const on = button("Next", () => turn(1), { disabled: true });
  const where = h("span.soft");
  const none = h("div", { hidden: true }, empty("No topics of this name", "Names begin with what you type, and case counts."));
  context.put("Topics and streams",
    h("div.beside", may("admin") ? button("New topic", create, { kind: "primary" }) : null),
    h("div.row", h("div.grow", prefix), where, back, on), list.element, none);
  await context.every(LOOK_MS, load);

  function activity(one) {
    const known = shown.get(one.topic);
    if (known?.epoch === one.epoch) return known;
    const fresh = { epoch: one.epoch, rate: new Rate(), trail: new Trail(30), line: spark(`Records a second of ${one.topic}`, { slots: 30 }), text: h("span.soft", "") };
    shown.set(one.topic, fresh);
    return fresh;
  }

  async function load() {
    const turnOf = (asked += 1);
    const page = await get("/v0/topics", { prefix: prefix.value, page_size: SIZE, cursor: trail.at(-1), streams: true }, context.signal);
    if (turnOf !== asked) return;
    next = page.next_cursor ?? null;
    for (const one of page.topics) {
      const { rate: look, trail: seen, line, text } = activity(one);
      const now = look.look(one.head_seq);
      if (now !== null) { seen.push(now); line.update(seen.values, `Records a second of ${one.topic}: now ${short(now)}`); text.textContent = now ? rate(now) : "–"; }
    }
    list.show(page.topics);
    list.element.hidden = page.topics.length === 0;
    none.hidden = page.topics.length > 0;
    back.disabled = trail.length < 2;
    on.disabled = next === null;
    where.textContent = `page ${trail.length}`;
  }

  function restart() {
    trail = [""];
    shown.clear();
    context.note({ prefix: prefix.value });
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
    const durability = select({ disk: "disk: survives the process", fsync: "fsync: survives a power cut", memory: "memory: may fall back", ephemeral: "ephemeral: in memory alone" }, "disk");
    const form = h("div.stack", field("Name", name, "1 to 255 of A-Z a-z 0-9 . _ : -"), field("Type", type), field("Durability", durability));
    if (await dialog("New topic", form, [["Cancel", null], ["Create", true, "primary"]]) !== true) return;
    try {
      const made = await putConfig(topicPath(name.value.trim()), { type: type.value, durability: durability.value });
      toast(made.created ? `${made.topic} is there.` : `${made.topic} was there already, and has this config now.`);
      location.hash = topicLink(made.topic);
    } catch (error) {
      dialog("It was not created", failure(error), [["Close", null]]);
    }
  }
}
