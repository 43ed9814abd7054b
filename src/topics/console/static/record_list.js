// A list of records: only the visible rows are drawn, at most once a frame.
//
// It is one stop for the keyboard. Arrows choose a row; `onpick` is called with the chosen one.

import { binaryLine, binaryOf } from "./binary.js";
import { label, valueAt } from "./columns.js";
import { fill, h } from "./dom.js";
import { clock, day, plural } from "./format.js";
import { oneLine } from "./json.js";
import { newId } from "./parts.js";

const ROW = 30;
const KEPT = 5000;
const SPARE = 6;

export const REASONS = {
  cap: "evicted to stay below the topic's cap", ttl: "expired: older than the retention time", mixed: "evicted by cap and retention time",
  recreated: "of an earlier topic with this name", crash: "lost in a crash, which the durability class allows",
  corrupt: "damaged on the disk and dropped by a repair", source_trim: "evicted from the source of a router before they were forwarded",
  from_seq_too_old: "evicted by cap or retention time before they were read", deleted: "deleted or acknowledged",
};

export class RecordList {
  constructor({ onpick, onfollow }) {
    this.items = [];
    this.filter = "";
    this.matching = this.items;
    this.chosen = null;
    this.bringing = null;
    this.following = true;
    this.onpick = onpick;
    this.onfollow = onfollow;
    this.columns = [];
    this.head = h("div.columns-head", { hidden: true, "aria-hidden": "true" });
    this.rows = h("div.rows");
    this.space = h("div.space", this.rows);
    this.element = h("div.tail", {
      role: "listbox", tabindex: "0", "aria-label": "Records, newest last", onscroll: () => this.#scrolled(), onkeydown: (event) => this.#key(event),
    }, this.space);
    this.due = false;
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  clear() { this.items = []; this.chosen = null; this.refilter(); }

  add(records) {
    for (const record of records) {
      const before = this.items.at(-1);
      const expected = before === undefined ? null : (before.to ?? before.seq) + 1;
      if (expected !== null && record.$seq > expected) this.items.push(hole(expected, record.$seq - 1, "deleted"));
      this.items.push({ seq: record.$seq, record, line: lineOf(record) });
    }
    this.#bound();
  }

  addBefore(records) {
    const kept = this.items;
    this.items = [];
    this.add(records);
    const last = this.items.at(-1);
    if (last && kept[0] && kept[0].seq > (last.to ?? last.seq) + 1) this.items.push(hole((last.to ?? last.seq) + 1, kept[0].seq - 1, "deleted"));
    this.items = this.items.concat(kept).slice(0, KEPT);
    this.refilter();
  }

  gap(tombstone) {
    const { gap_from: from, gap_to: to, reason } = tombstone;
    if (reason === "recreated") this.items = [];
    if (to >= from && !this.items.some((item) => item.gap && item.seq <= from && item.to >= to)) this.items.push(hole(from, to, reason, tombstone.missed_estimate));
    this.#bound();
  }

  /** Shows these fields of each record as columns; without any, the whole record. */
  setColumns(paths) {
    this.columns = paths;
    this.head.hidden = !paths.length;
    fill(this.head, h("span.seq", "seq"), h("time", "time"), paths.map((path) => h("span.cell", { title: label(path) }, label(path))));
    this.draw();
  }

  setFilter(text) { this.filter = text.toLowerCase(); this.refilter(); }
  get first() { return this.items.find((item) => !item.gap)?.seq ?? null; }
  get last() { const item = this.items.at(-1); return item === undefined ? null : item.to ?? item.seq; }

  choose(seq) {
    this.chosen = seq;
    this.bringing = seq;
    this.draw();
  }

  toEnd() { this.following = true; this.draw(); }

  #bound() {
    if (this.items.length > KEPT) this.items.splice(0, this.items.length - KEPT);
    this.refilter();
  }

  refilter() {
    this.matching = this.filter ? this.items.filter((item) => item.gap || item.line.toLowerCase().includes(this.filter)) : this.items;
    this.draw();
  }

  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.#drawNow(); });
  }

  #drawNow() {
    const { element, matching } = this;
    this.space.style.height = `${matching.length * ROW}px`;
    if (this.following) element.scrollTop = element.scrollHeight;
    else if (this.bringing !== null) this.#bring(this.bringing);
    this.bringing = null;
    const from = Math.max(0, Math.floor(element.scrollTop / ROW) - SPARE);
    const to = Math.min(matching.length, Math.ceil((element.scrollTop + element.clientHeight) / ROW) + SPARE);
    this.rows.style.transform = `translateY(${from * ROW}px)`;
    let active = "";
    fill(this.rows, matching.slice(from, to).map((item, i) => {
      const chosen = item.seq === this.chosen;
      const row = item.gap ? gapRow(item) : recordRow(item, this.filter, this.columns);
      row.id = newId("record");
      row.setAttribute("aria-selected", String(chosen));
      row.setAttribute("aria-setsize", matching.length);
      row.setAttribute("aria-posinset", from + i + 1);
      row.addEventListener("click", () => this.#pick(item));
      if (chosen) active = row.id;
      return row;
    }));
    if (active) element.setAttribute("aria-activedescendant", active); else element.removeAttribute("aria-activedescendant");
  }

  /** Scrolls a row into view. */
  #bring(seq) {
    const at = this.matching.findIndex((item) => item.seq === seq);
    const { scrollTop, clientHeight } = this.element;
    if (at >= 0 && (at * ROW < scrollTop || (at + 1) * ROW > scrollTop + clientHeight)) this.element.scrollTop = at * ROW - clientHeight / 2;
  }

  #scrolled() {
    const { element } = this;
    // The event belongs to an earlier position: the list is about to scroll to another one.
    if (this.bringing !== null) return;
    const end = element.scrollHeight - element.scrollTop - element.clientHeight < ROW;
    if (end !== this.following) { this.following = end; this.onfollow(end); }
    this.draw();
  }

  #pick(item) {
    this.choose(item.seq);
    this.onpick(item);
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || !this.matching.length) return;
    event.preventDefault();
    const at = this.matching.findIndex((item) => item.seq === this.chosen);
    const from = at < 0 ? (step > 0 ? -1 : this.matching.length) : at;
    const next = Math.min(this.matching.length - 1, Math.max(0, from + step));
    this.following = next === this.matching.length - 1;
    this.onfollow(this.following);
    this.#pick(this.matching[next]);
  }
}

function hole(from, to, reason, missed) { return { gap: true, seq: from, to, reason, missed, line: "" }; }

const shownLine = (record, most) => { const binary = binaryOf(record); return binary ? binaryLine(binary) : oneLine(record.data, most); };

function lineOf(record) {
  return [record.$tag, record.$node, shownLine(record, 2000)].filter(Boolean).join(" ");
}

function recordRow({ record }, filter, columns) {
  return h("div.record", { role: "option" },
    h("span.seq", record.$seq), h("time", { title: `${day(record.$ts)} ${clock(record.$ts)}` }, clock(record.$ts)),
    columns.length ? columns.map((path) => cellOf(valueAt(record.data, path), filter))
      : [record.$tag ? h("span.tag", record.$tag) : null, h("span.line", marked(shownLine(record), filter))]);
}

function cellOf(value, filter) {
  const text = value === undefined ? "" : oneLine(value, 200);
  return h("span.cell", { title: text }, marked(text, filter));
}

/** Marks the text that the filter matches. */
function marked(text, filter) {
  const at = filter ? text.toLowerCase().indexOf(filter) : -1;
  return at < 0 ? text : [text.slice(0, at), h("mark", text.slice(at, at + filter.length)), text.slice(at + filter.length)];
}

function gapRow({ seq, to, reason, missed }) {
  const much = missed ?? to - seq + 1;
  return h("div.gap", { role: "option", class: reason === "deleted" ? "quiet" : "" },
    h("span.seq", seq === to ? seq : `${seq}–${to}`),
    h("span.line", `${plural(much, "record")} ${REASONS[reason] ?? "missing"}`), h("span.badge", { class: reason === "deleted" ? "" : "bad" }, reason));
}
