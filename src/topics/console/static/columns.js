// Column view of JSON records: the fields to show as columns, chosen once per topic and remembered by the browser.

import { fill, h } from "./dom.js";
import { button, newId } from "./parts.js";

const KEPT = "topics-console-columns";
const TOPICS_MAX = 50;
const FOUND_MAX = 60;
const CHOSEN_MAX = 12;
const DEPTH = 3;

/** The value at a path of member names; undefined where there is none. */
export function valueAt(data, path) {
  let value = data;
  for (const name of path) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, name)) return undefined;
    value = value[name];
  }
  return value;
}

export const label = (path) => path.join(".");

/** The paths of the fields in some records, the most frequent first. */
export function fieldsOf(records) {
  const found = new Map();
  const visit = (value, path) => {
    if (value === null || typeof value !== "object" || Array.isArray(value) || Object.getPrototypeOf(value) !== Object.prototype) {
      if (path.length) { const key = JSON.stringify(path); found.set(key, (found.get(key) ?? 0) + 1); }
      return;
    }
    if (path.length === DEPTH) return;
    for (const [name, one] of Object.entries(value)) if (found.size < 1000) visit(one, [...path, name]);
  };
  for (const { data } of records) visit(data, []);
  return [...found].sort((a, b) => b[1] - a[1]).slice(0, FOUND_MAX).map(([key]) => JSON.parse(key));
}

function load() {
  try {
    const all = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(all) ? all.filter((one) => Array.isArray(one) && one.length === 2) : [];
  } catch {
    return [];
  }
}

/** The remembered columns of a topic. */
export function columnsOf(topic) {
  const paths = load().find(([name]) => name === topic)?.[1];
  return Array.isArray(paths) ? paths.filter((path) => Array.isArray(path) && path.every((one) => typeof one === "string")).slice(0, CHOSEN_MAX) : [];
}

function remember(topic, paths) {
  const others = load().filter(([name]) => name !== topic);
  const all = paths.length ? [...others, [topic, paths]] : others;
  try { localStorage.setItem(KEPT, JSON.stringify(all.slice(-TOPICS_MAX))); } catch { /* Without storage the choice lasts until the page is left. */ }
}

/** Opens the dialog in which columns are chosen; `onchange` is given their paths. */
export function columnDialog(topic, records, chosen, onchange) {
  const known = new Set(chosen.map((path) => JSON.stringify(path)));
  const found = [...chosen, ...fieldsOf(records).filter((path) => !known.has(JSON.stringify(path)))];
  const boxes = found.map((path) => [path, h("input", { type: "checkbox", id: newId("column"), checked: known.has(JSON.stringify(path)) })]);
  const heading = newId("dialog");
  const state = h("p.soft", { role: "status" });
  const box = h("dialog", { "aria-labelledby": heading, onclose: () => box.remove() },
    h("h2", { id: heading }, "Columns"),
    found.length ? h("ul.choose", boxes.map(([path, input]) => h("li.row", input, h("label.mono", { for: input.id }, label(path))))) : h("p", "The loaded records are not JSON objects."),
    state,
    h("div.actions", button("Cancel", () => box.close()), button("Show whole records", () => take([])), found.length ? button("Show columns", apply, { kind: "primary" }) : null));
  document.body.append(box);
  box.showModal();

  function apply() {
    const paths = boxes.filter(([, input]) => input.checked).map(([path]) => path);
    if (paths.length > CHOSEN_MAX) return fill(state, `Choose at most ${CHOSEN_MAX} columns.`);
    return take(paths);
  }

  function take(paths) {
    remember(topic, paths);
    onchange(paths);
    box.close();
  }
}
