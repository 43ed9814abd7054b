// The search description of a stream as a form: infer fields from entries, edit their kinds, apply.
//
// A field whose name leads to its value has the short form, its kind. Any other field keeps the form in which the
// server gave it, so its kind cannot be changed here.

import { ApiError, post, streamPath } from "../api.js";
import { append, fill, h } from "../dom.js";
import { count, plural } from "../format.js";
import { searchLink } from "../links.js";
import { badge, button, card, failure, field, mono, note, select, table, textField, toast } from "../parts.js";

const KINDS = { text: "text: words", keyword: "keyword: exact values", integer: "integer", float: "float", date: "date", bool: "bool" };
const NAME = /^[a-zA-Z0-9][a-zA-Z0-9._-]*$/;

/** The short form of a stored field, if it has one: a single binding at the pointer of its name. */
function shortened(name, one) {
  if (typeof one === "string") return one;
  const pointer = `/${name.split(".").join("/")}`;
  return one.bindings?.length === 1 && one.bindings[0].jsonPointer === pointer ? one.kind : one;
}

export function searchForm({ name, registry, open }) {
  const stored = registry?.search ?? null;
  const rows = new Map(Object.entries(stored?.fields ?? {}).map(([key, one]) => [key, shortened(key, one)]));
  const body = h("div.stack");
  const outcome = h("div", { "aria-live": "polite" });
  const told = h("div", { role: "status" });
  const time = h("select", { "aria-label": "Primary timestamp" });
  const added = textField({ placeholder: "user.id" });
  const addedKind = select(KINDS, "keyword");
  let chosenTime = stored?.primaryTimestampField ?? "";
  time.addEventListener("change", () => { chosenTime = time.value; });
  const list = table("Search fields to apply", [
    { title: "Field", class: "name", cell: ([key]) => key },
    { title: "Kind", cell: ([key, one]) => (typeof one === "string" ? select(KINDS, one, { "aria-label": `Kind of ${key}`, onchange: (event) => { rows.set(key, event.target.value); drawTime(); } }) : [badge(one.kind), h("span.soft.mono", ` ${one.bindings?.[0]?.jsonPointer ?? ""}`)]) },
    { title: "Action", class: "number", cell: ([key]) => button("Remove", () => { rows.delete(key); draw(); }, { kind: "small", name: `Remove ${key}` }) },
  ]);
  const form = h("form.row", { onsubmit: (event) => { event.preventDefault(); add(); } }, h("div.grow", field("New field", added, "The names of nested members are joined with dots.")), field("Kind of the new field", addedKind), h("button.button", { type: "submit" }, "Add"));
  const apply = button("Apply", send, { kind: "primary" });
  const timeField = field("Primary timestamp", time, "The time of an entry, for sort orders and the histogram.");
  fill(body, h("div.row", button("Infer from the newest entries", infer, { icon: "search" }), told), list.element, form, timeField, h("div.row", apply, outcome));
  draw();
  const details = h("details", { open: open || stored === null }, h("summary", stored === null ? "Choose the search fields" : "Edit the search fields"), body);
  return append(card(stored === null ? "Make this stream searchable" : "Search fields"), [
    stored === null ? note("Words and values in the chosen fields become searchable, also in stored entries. No schema is needed.") : null, details]);

  function draw() {
    list.show([...rows]);
    list.element.hidden = rows.size === 0;
    apply.disabled = rows.size === 0;
    drawTime();
  }

  function drawTime() {
    const dates = [...rows].filter(([, one]) => (typeof one === "string" ? one : one.kind) === "date").map(([key]) => key);
    if (!dates.includes(chosenTime)) chosenTime = dates[0] ?? "";
    fill(time, h("option", { value: "" }, "none"), dates.map((key) => h("option", { value: key, selected: key === chosenTime }, key)));
    timeField.hidden = dates.length === 0;
  }

  function add() {
    const key = added.value.trim();
    if (!NAME.test(key)) return fill(outcome, failure({ message: "a field name begins with a letter or digit and has only letters, digits, dots, hyphens and underscores" }));
    rows.set(key, addedKind.value);
    added.value = "";
    fill(outcome, "");
    draw();
    return null;
  }

  async function infer() {
    try {
      const answer = await post(`${streamPath(name)}/_schema/infer`, {});
      const { fields = {}, primaryTimestampField } = answer.search;
      let fresh = 0;
      for (const [key, one] of Object.entries(fields)) if (!rows.has(key)) { rows.set(key, one); fresh += 1; }
      chosenTime ||= primaryTimestampField ?? "";
      draw();
      const skipped = answer.skipped ?? [];
      fill(told, `Read ${plural(answer.sampled.entries, "entry", "entries")}: ${plural(fresh, "new field")}`,
        skipped.length ? h("details", h("summary", `${plural(skipped.length, "member")} not proposed`), h("ul", skipped.slice(0, 50).map((one) => h("li", mono(one.pointer || "/"), ` ${one.reason}`)), skipped.length > 50 ? h("li", `and ${count(skipped.length - 50)} more`) : null)) : ".");
    } catch (error) {
      refused(error);
    }
  }

  async function send() {
    apply.disabled = true;
    const kept = { ...stored };
    delete kept.primaryTimestampField;
    const search = { ...kept, fields: Object.fromEntries(rows), ...(chosenTime ? { primaryTimestampField: chosenTime } : {}) };
    try {
      await post(`${streamPath(name)}/_schema`, { search });
      toast(`${name} is searchable.`);
      location.hash = searchLink(name);
    } catch (error) {
      refused(error);
    } finally {
      apply.disabled = rows.size === 0;
    }
  }

  function refused(error) {
    if (!(error instanceof ApiError)) throw error;
    fill(outcome, failure(error));
  }
}
