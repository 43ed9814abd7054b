// The records of a topic: live, or from any seq or time on.

import { exactly, get, topicPath } from "../api.js";
import { binaryOf, fileName, preview } from "../binary.js";
import { Rate, Trail, spark } from "../charts.js";
import { columnDialog, columnsOf, label, valueAt } from "../columns.js";
import { fill, h } from "../dom.js";
import { exportDialog } from "../export.js";
import { ago, bytes, count, iso, moment, plural, rate, short } from "../format.js";
import { plain, pretty } from "../json.js";
import { topicLink } from "../links.js";
import { follow } from "../live.js";
import { badge, button, copy, facts, select, textField, toast } from "../parts.js";
import { REASONS, RecordList } from "../record_list.js";
import { seqAt } from "../seek.js";
import { watermarks } from "../watermarks.js";

const PAGE = 200;
const LOOK_MS = 2000;

export default async function render(context) {
  const { name, body, signal } = context;
  let { info } = context;
  let stop = null;
  let arrived = 0;
  let unseen = 0;
  const rates = new Rate();
  const trail = new Trail(60);
  const line = spark(`Records per second of ${name}`);
  const speed = h("span");
  const state = badge("…");
  const picture = h("div");
  const side = h("aside.detail", { "aria-label": "Selected record", hidden: true });
  const behind = button("Newer", () => list.toEnd(), { kind: "small newer", icon: "down", hidden: true });
  const list = new RecordList({ onpick: pick, onfollow: (at) => { if (at) { unseen = 0; behind.hidden = true; } } });
  const pausing = button("Pause", toggle, { icon: "pause" });
  const filter = textField({ type: "search", placeholder: "Filter the rows", "aria-label": "Filter the rows", "data-slash": true, oninput: () => list.setFilter(filter.value) });
  const where = select({ newest: "newest", oldest: "oldest", seq: "seq…", time: "time…" }, "newest", { "aria-label": "Go to", onchange: asks });
  const place = textField({ "aria-label": "Seq", hidden: true, class: "place" });
  const jump = h("form.row", { onsubmit: (event) => { event.preventDefault(); go(); } }, h("label.soft.wide", "Go to"), where, place, h("button.button", { type: "submit" }, "Go"));
  jump.querySelector("label").setAttribute("for", (where.id = "where"));
  const earlier = button("Earlier", () => older(), { kind: "small" });
  const later = button("Later", () => newer(), { kind: "small", hidden: true });
  const choose = button("Columns", () => columnDialog(name, list.items.filter((one) => !one.gap).slice(-500).map((one) => one.record), list.columns, (paths) => list.setColumns(paths)), { kind: "small" });
  const exporting = button("Export", () => exportRecords(), { kind: "small", icon: "down" });
  list.setColumns(columnsOf(name));
  fill(body,
    h("div.topic-top", picture, h("div.card.now", h("div.row", h("h2", "Now"), speed), h("div.tiny", line.element))),
    h("div.row.toolbar", pausing, state, h("div.grow", filter), jump),
    h("div.split", h("div.tail-box", list.head, list.element, h("div.row.tail-foot", earlier, later, choose, exporting, behind)), side));
  body.addEventListener("keydown", (event) => { if (event.key === " " && event.target === list.element) { event.preventDefault(); toggle(); } });
  signal.addEventListener("abort", () => stop?.());
  const asked = context.query.get("seq");
  if (asked !== null && /^\d+$/.test(asked)) await browse(Number(asked) - Math.floor(PAGE / 4), Number(asked)); else await live();
  await context.every(LOOK_MS, look);

  async function look() {
    info = await get(topicPath(name), { touch: false, streams: true }, signal);
    fill(picture, watermarks(info));
    const now = rates.look(info.head_seq);
    if (now === null) return;
    trail.push(now);
    line.update(trail.values, `Records per second: now ${short(now)}`);
    speed.textContent = rate(now);
  }

  function read(fromSeq, limit = PAGE) {
    return exactly("POST", `${topicPath(name)}/diff`, { body: { from_seq: Math.max(0, fromSeq), limit, include_tags: true }, query: { streams: true }, signal });
  }

  function take(page) {
    if (page.tombstone) list.gap(page.tombstone);
    list.add(page.records);
  }

  /** The newest records, then the ones that arrive. */
  async function live() {
    stop?.();
    list.clear();
    const page = await read(info.count <= PAGE ? 0 : info.head_seq - PAGE);
    take(page);
    list.toEnd();
    resume(page.next_from_seq, page.epoch);
  }

  function resume(fromSeq, epoch) {
    stop = follow(name, fromSeq, epoch, {
      records(records) {
        arrived += records.length;
        list.add(records);
        if (!list.following) { unseen += records.length; behind.hidden = false; behind.lastChild.textContent = `${count(unseen)} newer`; }
      },
      gap: (gap) => list.gap(gap),
      gone: () => { shown("deleted"); stop = null; },
      state: shown,
    });
    fill(pausing, ...button("Pause", null, { icon: "pause" }).childNodes);
    later.hidden = true;
  }

  function shown(word) {
    state.textContent = { live: "live", connecting: "connecting…", paused: "paused", deleted: "deleted" }[word];
    state.className = `badge ${{ live: "good", connecting: "warn", deleted: "bad" }[word] ?? ""}`;
  }

  function halt() {
    stop?.();
    stop = null;
    shown("paused");
    fill(pausing, ...button("Resume", null, { icon: "play" }).childNodes);
  }

  /** Pause keeps the view as it is; resume continues from there without a gap. */
  function toggle() {
    if (stop !== null) return halt();
    list.toEnd();
    resume(list.last ?? info.head_seq, info.epoch);
  }

  async function browse(fromSeq, chosen) {
    halt();
    list.clear();
    list.following = false;
    const page = await read(fromSeq);
    take(page);
    later.hidden = page.caught_up;
    const seq = chosen ?? page.records[0]?.$seq;
    const item = list.items.find((one) => one.seq === seq);
    if (seq !== undefined) list.choose(seq);
    if (item) pick(item);
    else if (chosen !== undefined) toast(`Seq ${count(chosen)} does not exist any more.`);
  }

  async function older() {
    const first = list.items[0]?.seq ?? 1;
    if (first <= 1) return toast("This is the first record.");
    list.following = false;
    const page = await read(first - 1 - PAGE);
    const before = page.records.filter((record) => record.$seq < first);
    list.addBefore(before);
    if (!before.length) toast("There are no live records before this one.");
    if (before.length) list.choose(before.at(-1).$seq);
  }

  async function newer() {
    const page = await read(list.last ?? 0);
    take(page);
    later.hidden = page.caught_up;
  }

  function asks() {
    place.hidden = where.value !== "seq" && where.value !== "time";
    place.type = where.value === "time" ? "datetime-local" : "number";
    place.step = "1";
    place.setAttribute("aria-label", where.value === "time" ? "Time" : "Seq");
    if (!place.hidden) place.focus();
  }

  async function go() {
    try {
      if (where.value === "newest") { info = await get(topicPath(name), { touch: false, streams: true }, signal); context.note({ seq: null }); await live(); }
      else if (where.value === "oldest") await browse(0);
      else if (where.value === "seq" && place.value !== "") await browse(Number(place.value) - Math.floor(PAGE / 4), Number(place.value));
      else if (where.value === "time" && place.value !== "") {
        const seq = await seqAt(read, info, new Date(place.value).getTime());
        if (seq === null) toast("There are no records at or after this time."); else await browse(seq - 1 - Math.floor(PAGE / 4), seq);
      }
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message, "bad");
    }
  }

  function pick(item) {
    side.hidden = false;
    if (item.gap) {
      fill(side, h("div.row", h("h2", `Gap, ${count(item.seq)} to ${count(item.to)}`), closing()),
        h("p", `${item.missed === undefined ? "" : `Up to ${plural(item.missed, "record")}: `}${REASONS[item.reason] ?? item.reason}.`));
      return;
    }
    const { record } = item;
    const binary = binaryOf(record);
    context.note({ seq: record.$seq });
    fill(side,
      h("div.row", h("h2", `Record ${count(record.$seq)}`), h("span.grow"),
        button("", () => copy(plain(record.data, 2)), { kind: "quiet small", icon: "copy", name: "Copy the data" }),
        button("", () => copy(new URL(topicLink(name, "live", { seq: record.$seq }), location.href).href), { kind: "quiet small", icon: "link", name: "Copy a link to this record" }),
        closing()),
      facts([
        ["Committed", h("time", { datetime: iso(record.$ts), title: iso(record.$ts) }, `${moment(record.$ts)}, ${ago(record.$ts)}`)],
        record.$tag ? ["Tag", record.$tag] : null, record.$node ? ["Node", record.$node] : null,
        binary ? ["Content type", binary.type] : null,
        ["Size", bytes(binary ? binary.length : new TextEncoder().encode(plain(record.data) ?? "").length)],
      ]),
      binary ? preview(binary, `${fileName(name)}-${record.$seq}`) : [h("h3", "Data"), pretty(record.data, "Data of the record")],
      record.meta && !(binary && Object.keys(record.meta).length === 1) ? [h("h3", "Meta"), pretty(record.meta, "Meta of the record")] : null);
  }

  function exportRecords() {
    const fields = list.columns.length ? list.columns.map((path) => ({ name: label(path), of: (row) => valueAt(row.data, path) })) : [{ name: "data", of: (row) => (typeof row.data === "string" && !binaryOf({ ...row }) ? row.data : plain(row.data)) }];
    const columns = [{ name: "seq", of: (row) => row.seq }, { name: "time", of: (row) => row.time }, { name: "tag", of: (row) => row.tag }, { name: "node", of: (row) => row.node }, ...fields];
    exportDialog({
      title: `Export ${name}`, name, columns, hint: "Exports the live records from the oldest on. CSV has the chosen columns, or the data as JSON.",
      async *pages(stopped, most) {
        let from = 0;
        for (;;) {
          const page = await exactly("POST", `${topicPath(name)}/diff`, { body: { from_seq: from, limit: Math.min(1000, most), include_tags: true }, query: { streams: true }, signal: AbortSignal.any([signal, stopped]) });
          yield page.records.map((one) => ({ seq: one.$seq, time: iso(one.$ts), tag: one.$tag, node: one.$node, data: one.data, meta: one.meta }));
          // Up to the head as it was: a busy topic would never end.
          if (page.caught_up || page.next_from_seq >= info.head_seq) return;
          from = page.next_from_seq;
        }
      },
    });
  }

  function closing() {
    return button("", () => { side.hidden = true; list.choose(null); context.note({ seq: null }); list.element.focus(); }, { kind: "quiet small", icon: "close", name: "Close" });
  }
}
