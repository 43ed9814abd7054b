// Completion of a query: field names, and values of the hits.

import { fill, h } from "./dom.js";
import { plural } from "./format.js";
import { newId } from "./parts.js";

const SHOWN = 10;

/** The completions at the cursor: `{from, options}`; an option is `[text, description]`. */
export function suggest(text, cursor, fields, values) {
  const before = text.slice(0, cursor);
  const word = /(?:^|[\s(])-?([^\s()"]*)$/.exec(before)?.[1];
  if (word === undefined) return { from: cursor, options: [] };
  const from = cursor - word.length;
  const colon = word.indexOf(":");
  if (colon < 0) {
    const all = [...Object.entries(fields).map(([name, kind]) => [`${name}:`, kind]), ["has:", "field exists"]];
    return { from, options: word ? all.filter(([one]) => one.startsWith(word) && one !== word).slice(0, SHOWN) : [] };
  }
  const [field, begun] = [word.slice(0, colon), word.slice(colon + 1)];
  const known = field === "has" ? Object.keys(fields).map((name) => [name, "field"]) : [...(values.get(field) ?? new Map())].map(([one, times]) => [quote(one), plural(times, "hit")]);
  return { from: from + colon + 1, options: known.filter(([one]) => one.startsWith(begun) && one !== begun).slice(0, SHOWN) };
}

/** A value as a query takes it. */
export const quote = (value) => (/^[\p{L}\p{N}_.-]+$/u.test(value) && !value.startsWith("-") ? value : JSON.stringify(value));

/** Makes a text field a box with suggestions. `ask(text, cursor)` gives them. */
export function complete(input, ask) {
  const list = h("ul.suggestions", { id: newId("suggestions"), role: "listbox", "aria-label": "Suggestions", hidden: true });
  for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "false", "aria-controls": list.id, "aria-autocomplete": "list" })) input.setAttribute(name, value);
  let offer = { from: 0, options: [] };
  let chosen = 0;
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const mark = () => {
    [...list.children].forEach((one, i) => one.setAttribute("aria-selected", String(i === chosen)));
    if (list.children[chosen]) input.setAttribute("aria-activedescendant", list.children[chosen].id);
  };
  const take = (option) => {
    const cursor = input.selectionStart;
    input.value = input.value.slice(0, offer.from) + option + input.value.slice(cursor);
    input.setSelectionRange(offer.from + option.length, offer.from + option.length);
    input.focus();
    if (option.endsWith(":")) show(); else close();
  };
  const show = () => {
    offer = ask(input.value, input.selectionStart);
    if (!offer.options.length) return close();
    chosen = 0;
    fill(list, offer.options.map(([text, what]) => h("li", { id: newId("option"), role: "option", onmousedown: (event) => { event.preventDefault(); take(text); } }, h("span.mono", text), h("small", what))));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark();
  };
  input.addEventListener("input", show);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "ArrowDown") chosen = (chosen + 1) % list.children.length;
    else if (event.key === "ArrowUp") chosen = (chosen + list.children.length - 1) % list.children.length;
    else if (event.key === "Tab") take(offer.options[chosen][0]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    if (!list.hidden) mark();
  });
  return list;
}
