// A list of records, however many there are: only the rows in sight are drawn, at most once a frame.
//
// It is one stop for the keyboard. Arrows choose a row, and what is chosen is told to whoever asked.

import { fill, h } from "./dom.js";
import { clock, day, plural } from "./format.js";
import { oneLine } from "./json.js";
import { newId } from "./parts.js";

const ROW = 30;
const KEPT = 5000;
const SPARE = 6;

export const REASONS = {
  cap: "evicted to stay below the topic's cap", ttl: "older than the topic keeps them", mixed: "taken by cap and age",
  recreated: "of an earlier topic of this name", crash: "taken by a crash that the topic's class allows",
  corrupt: "damaged on the disk, and given up by a repair", source_trim: "lost by the source of a router before they were forwarded",
  from_seq_too_old: "taken by cap or age before they were read", deleted: "deleted on purpose, or acknowledged",
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
    this.rows = h("div.rows");
    this.space = h("div.space", this.rows);
    this.element = h("div.tail", {
      role: "listbox", tabindex: "0", "aria-label": "Records, the newest last", onscroll: () => this.#scrolled(), onkeydown: (event) => this.#key(event),
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
      const row = item.gap ? gapRow(item) : recordRow(item, this.filter);
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

  /** Scrolls a row into sight, if it is not. */
  #bring(seq) {
    const at = this.matching.findIndex((item) => item.seq === seq);
    const { scrollTop, clientHeight } = this.element;
    if (at >= 0 && (at * ROW < scrollTop || (at + 1) * ROW > scrollTop + clientHeight)) this.element.scrollTop = at * ROW - clientHeight / 2;
  }

  #scrolled() {
    const { element } = this;
    // News of an earlier place, while the list is on its way to another.
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

function lineOf(record) {
  return [record.$tag, record.$node, oneLine(record.data, 2000)].filter(Boolean).join(" ");
}

function recordRow({ record }, filter) {
  return h("div.record", { role: "option" },
    h("span.seq", record.$seq), h("time", { title: `${day(record.$ts)} ${clock(record.$ts)}` }, clock(record.$ts)),
    record.$tag ? h("span.tag", record.$tag) : null, h("span.line", marked(oneLine(record.data), filter)));
}

/** What the filter found stands out. */
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
