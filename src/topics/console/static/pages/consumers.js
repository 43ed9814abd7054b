// Consumers: cursors that the server stores, their lag over time, and a form that resets one.

import { ApiError, del, get, may, post, topicPath } from "../api.js";
import { timeChart } from "../charts.js";
import { fill, h } from "../dom.js";
import { ago, count, duration, plural, short } from "../format.js";
import { topicLink } from "../links.js";
import { badge, button, card, confirmWord, dialog, empty, facts, failure, field, note, select, table, textField, toast } from "../parts.js";

const PAGE = 200;
const LOOK_MS = 2000;
const SPAN_MS = 600_000;
const SPAN_MIN_MS = 60_000;
const KEPT = 400;

const consumerLink = (one) => `#/consumers/${encodeURIComponent(one.topic)}/${encodeURIComponent(one.consumer)}`;
const consumerPath = (topic, name) => `${topicPath(topic)}/consumers/${encodeURIComponent(name)}`;
const STREAMS = { streams: true };

/** Lags that were seen since the console was opened, by topic and consumer. */
const seen = new Map();

function remember(one) {
  const key = `${one.topic}\n${one.consumer}`;
  const points = seen.get(key) ?? [];
  points.push([Date.now(), one.lag, one.lag_ms]);
  if (points.length > KEPT) points.shift();
  seen.delete(key);
  seen.set(key, points);
  if (seen.size > PAGE) seen.delete(seen.keys().next().value);
  return points;
}

export default async function render(context) {
  const [topic, consumer] = context.parts;
  if (topic !== undefined && consumer !== undefined) return one(context, topic, consumer);
  const prefix = textField({ type: "search", placeholder: "Topics whose names begin with…", "aria-label": "Topics whose names begin with", "data-slash": true, value: context.query.get("prefix") ?? "" });
  const list = table("Consumers", [
    { title: "Consumer", class: "name", cell: (row) => h("a", { href: consumerLink(row) }, row.consumer) },
    { title: "Topic", class: "name", cell: (row) => h("a", { href: topicLink(row.topic) }, row.topic) },
    { title: "Cursor", class: "number", cell: (row) => count(row.seq) },
    { title: "Lag", class: "number", cell: (row) => h("span", { title: count(row.lag) }, short(row.lag)) },
    { title: "Age", class: "number", cell: (row) => (row.lag_ms ? duration(row.lag_ms) : "") },
    { title: "Last commit", class: "number wide", cell: (row) => (row.committed_ms === null ? "never" : ago(row.committed_ms)) },
    { title: "State", cell: state },
  ]);
  const none = h("div", { hidden: true }, empty("No consumers", "A consumer is a cursor that the server stores. Create one with PUT /v0/topics/{topic}/consumers/{consumer}."));
  const told = h("p.soft", { role: "status" });
  context.put("Consumers", h("div.row", h("div.grow", prefix), told), list.element, none);
  prefix.addEventListener("input", () => { context.note({ prefix: prefix.value }); look().catch(() => {}); });
  let asked = 0;
  await context.every(LOOK_MS, look);

  async function look() {
    const turn = (asked += 1);
    const page = await get("/v0/consumers", { prefix: prefix.value, page_size: PAGE }, context.signal);
    if (turn !== asked) return;
    page.consumers.forEach(remember);
    list.show(page.consumers);
    list.element.hidden = !page.consumers.length;
    none.hidden = page.consumers.length > 0;
    told.textContent = page.next_cursor ? `The first ${PAGE} are shown. Type more of the topic's name to find others.` : plural(page.consumers.length, "consumer");
  }
}

function state(row) {
  if (row.lost) return badge(`lost ${plural(row.lost.missed_estimate, "record")}`, "bad");
  return row.lag ? badge("behind", "warn") : badge("up to date", "good");
}

async function one(context, topic, consumer) {
  const records = timeChart("Lag in records", short);
  const age = timeChart("Lag in time", duration);
  const lost = h("div");
  const known = h("div");
  const path = consumerPath(topic, consumer);
  let last = null;
  context.put(`${consumer} of ${topic}`,
    h("div.row", h("a", { href: "#/consumers" }, "All consumers"), h("span.grow"),
      may("read") ? button("Reset the cursor", reset) : null,
      may("delete") ? button("Delete", remove, { kind: "bad" }) : null),
    lost, card("State", known),
    h("div.columns.charts", card("Lag in records", records.element), card("Lag in time", age.element)));
  try {
    await context.every(LOOK_MS, look);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    context.put(consumer, empty("This consumer does not exist", h("a", { href: "#/consumers" }, "Show all consumers")));
  }

  async function look() {
    last = await get(path, STREAMS, context.signal);
    const points = remember(last);
    draw(records, points.map(([ms, lag]) => [ms, lag]));
    draw(age, points.map(([ms, , lag]) => [ms, lag]));
    fill(known, facts([
      ["Topic", h("a", { href: topicLink(topic, "live", { seq: Math.max(1, last.seq) }) }, topic)],
      ["Committed cursor", `${count(last.seq)} of ${count(last.head_seq)}`],
      ["Lag", last.lag ? `${plural(last.lag, "record")}, ${duration(last.lag_ms)}` : "none"],
      ["Last commit", last.committed_ms === null ? "never" : [ago(last.committed_ms), last.committed_by ? ` by ${last.committed_by}` : ""]],
      ["Created", ago(last.created_ms)],
    ]));
    fill(lost, last.losses?.length ? h("div.banner", { role: "alert" }, last.losses.map((one) => h("p", `Records ${count(one.gap_from)} to ${count(one.gap_to)} were lost before this consumer committed them (${one.reason}).`))) : null);
  }

  async function reset() {
    const place = select({ earliest: "The earliest record", latest: "The end of the topic", seq: "Behind a seq", time: "A time" }, "earliest", { "aria-label": "New cursor" });
    const seq = textField({ inputmode: "numeric", value: String(last?.seq ?? 0) });
    const time = h("input", { type: "datetime-local", step: 1 });
    const ofSeq = field("Seq", seq);
    const ofTime = field("Time", time, "Reads begin with the first record of this time or later.");
    const choose = () => { ofSeq.hidden = place.value !== "seq"; ofTime.hidden = place.value !== "time"; };
    place.addEventListener("change", choose);
    choose();
    const content = h("div.stack", field("New cursor", place), ofSeq, ofTime,
      note(`The cursor is at ${count(last?.seq ?? 0)} now. Back, records are delivered again. Forward, records are skipped.`));
    if (!await dialog(`Reset ${consumer}?`, content, [["Cancel", null], ["Reset the cursor", true, "bad"]])) return;
    const target = { earliest: () => ({ seq: 0 }), latest: () => ({ last: 0 }), seq: () => ({ seq: Number(seq.value) }), time: () => ({ since_ts: new Date(time.value).getTime() }) }[place.value]();
    if (Object.values(target).some((value) => !Number.isSafeInteger(value))) return toast("Give a seq or a time.", "bad");
    try {
      const answer = await post(`${path}/commit?streams=true`, { ...target, force: true, epoch: last?.epoch });
      toast(`The cursor is at ${count(answer.seq)}.`);
      await look();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      dialog("The cursor was not reset", failure(error), [["Close", null]]);
    }
  }

  async function remove() {
    if (!await confirmWord("Delete the consumer?", "Its cursor is lost. The records stay.", consumer, "Delete")) return;
    try {
      await del(path, STREAMS);
      location.hash = "#/consumers";
    } catch (error) {
      if (error instanceof ApiError) toast(error.message, "bad"); else throw error;
    }
  }
}

/** Draws points of irregular times as one value for each look; a gap is a time when nobody looked. */
function draw(chart, points) {
  const end = points.at(-1)[0];
  const span = Math.min(SPAN_MS, Math.max(SPAN_MIN_MS, end - points[0][0]));
  const slots = Math.ceil(span / LOOK_MS) + 1;
  const values = Array(slots).fill(null);
  for (const [ms, value] of points) {
    const at = slots - 1 - Math.floor((end - ms) / LOOK_MS);
    if (at >= 0) values[at] = value;
  }
  // A look that took longer leaves an empty slot, which is none of the gaps.
  for (let at = 1; at < slots - 1; at += 1) if (values[at] === null && values[at - 1] !== null && values[at + 1] !== null) values[at] = values[at - 1];
  chart.update({ values: values.slice(values.findIndex((value) => value !== null)), step_ms: LOOK_MS, end_ms: end }, span);
}
