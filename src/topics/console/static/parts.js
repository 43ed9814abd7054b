// The parts of pages: buttons, fields, tables, dialogs, messages.

import { append, fill, h } from "./dom.js";
import { icon } from "./icons.js";

let ids = 0;
export const newId = (word) => `${word}-${(ids += 1)}`;

export const badge = (text, kind = "") => h("span.badge", { class: kind }, text);
export const mono = (text, more = {}) => h("span.mono", more, text);
export const note = (...children) => h("p.note", ...children);
export const card = (title, ...children) => h("section.card", title ? h("h2", title) : null, ...children);

export function button(label, onclick, { kind = "", name, icon: picture, ...more } = {}) {
  return h("button.button", { type: "button", class: kind, onclick, "aria-label": name, ...more },
    picture ? icon(picture) : null, label ? h("span", label) : null);
}

/** A label with its field, and what it means below. */
export function field(label, input, hint) {
  input.id ||= newId("field");
  const said = hint ? h("small", { id: `${input.id}-hint` }, hint) : null;
  if (said) input.setAttribute("aria-describedby", said.id);
  return h("div.field", h("label", { for: input.id }, label), input, said);
}

export const textField = (props = {}) => h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...props });
export const select = (options, value, props = {}) =>
  h("select", props, Object.entries(options).map(([one, text]) => h("option", { value: one, selected: one === value }, text)));

/** An empty page or list, with what to do next. */
export const empty = (title, ...children) => h("div.empty", h("h2", title), ...children);

export function failure(error) {
  const sentence = error.message ? error.message[0].toUpperCase() + error.message.slice(1) : "Something went wrong";
  return h("div.failure", { role: "alert" }, h("strong", sentence.replace(/\.?$/, ".")), error.code ? mono(` ${error.code}`) : null);
}

/** A table of rows; a column is `{title, cell, class}`. */
export function table(caption, columns, rows = []) {
  const body = h("tbody");
  const head = h("tr", columns.map((one) => h("th", { scope: "col", class: one.class }, one.title)));
  const made = h("table", h("caption.unseen", caption), h("thead", head), body);
  const show = (all) => fill(body, all.map((row) => h("tr", columns.map((one) => h("td", { class: one.class }, one.cell(row))))));
  show(rows);
  // A table that is wider than the page scrolls, also with the keyboard.
  const element = h("div.scrolls", { tabindex: "0", role: "region", "aria-label": caption }, made);
  return { element, show, body };
}

/** Names and values, one below the other. */
export const facts = (pairs) => h("dl.facts", pairs.filter(Boolean).map(([name, value]) => [h("dt", name), h("dd", value)]));

/** A number with its name; `set` changes it. */
export function figure(name, { hint } = {}) {
  const value = h("output", "–");
  const more = h("span.more");
  const element = h("div.figure", { title: hint }, h("span.name", name), value, more);
  return { element, set(text, rest = "") { value.textContent = text; more.replaceChildren(); append(more, [rest]); } };
}

export function toast(text, kind = "") {
  const one = h("div.toast", { class: kind }, text);
  document.getElementById("toasts").append(one);
  setTimeout(() => one.remove(), kind === "bad" ? 9000 : 4500);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    // Browsers allow the clipboard only over TLS or on this machine.
    dialog("Copy the text", h("textarea", { readonly: true, rows: 4, "aria-label": "Text to copy", value: text }), [["Close", true]]);
  }
}

/** Opens a dialog; resolves to the value of the chosen action, or null when it is closed. `actions` are `[label, value, kind]`. */
export function dialog(title, content, actions) {
  return new Promise((resolve) => {
    const name = newId("dialog");
    const close = (value) => { resolve(value); box.close(); };
    const box = h("dialog", { "aria-labelledby": name, onclose: () => { resolve(null); box.remove(); } },
      h("h2", { id: name }, title), content,
      h("div.actions", actions.map(([label, value, kind]) => button(label, () => close(value), { kind }))));
    document.body.append(box);
    box.showModal();
  });
}

/** Confirms an action that cannot be undone: the button is disabled until the word is typed. */
export function confirmWord(title, sentence, word, label) {
  return new Promise((resolve) => {
    const name = newId("dialog");
    const typed = textField();
    const go = button(label, () => close(true), { kind: "bad", disabled: true });
    typed.addEventListener("input", () => { go.disabled = typed.value !== word; });
    const close = (value) => { resolve(value); box.close(); };
    const box = h("dialog", { "aria-labelledby": name, onclose: () => { resolve(false); box.remove(); } },
      h("h2", { id: name }, title), h("p", sentence), field(["To confirm, type ", mono(word)], typed),
      h("div.actions", button("Cancel", () => close(false)), go));
    document.body.append(box);
    box.showModal();
    typed.focus();
  });
}

export const sure = (title, sentence, label) =>
  dialog(title, h("p", sentence), [["Cancel", null], [label, true, "bad"]]);

/** Links that look like tabs: each has its own address. */
export const tabs = (label, current, entries) =>
  h("nav.tabs", { "aria-label": label }, entries.map(([id, text, href]) =>
    h("a", { href, "aria-current": id === current ? "page" : undefined }, text)));
