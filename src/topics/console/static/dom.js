// Elements out of plain values.
//
// Text is always text: nothing on this page makes markup out of a string, whatever a record or a name holds, and the
// page's policy (trusted types) has the browser refuse it as well. Characters that hide or reorder their neighbours
// are shown as escapes, because a name with one of them can look like another name.

const SVG = "http://www.w3.org/2000/svg";

/** `h("div.card", {id: "x", onclick: f}, "text", child)`; children may be nodes, texts, lists of them, or nothing. */
export function h(tag, ...rest) {
  return make((name) => document.createElement(name), tag, rest);
}

/** The same for SVG. */
export function svg(tag, ...rest) {
  return make((name) => document.createElementNS(SVG, name), tag, rest);
}

// Controls but tab and line feed, zero-width characters, and everything that sets the direction of text. Joiners stay:
// some scripts are not readable without them.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;

/** The text with an escape for each character that nobody would see. */
export const visible = (text) => String(text).replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

const SHOWN = new Set(["title", "aria-label", "placeholder", "alt"]);

function make(create, tag, rest) {
  const [name, ...classes] = tag.split(".");
  const element = create(name || "div");
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const props = isProps(rest[0]) ? rest.shift() : {};
  for (const [key, value] of Object.entries(props)) setProp(element, key, value);
  append(element, rest);
  return element;
}

function isProps(value) {
  return value !== null && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype;
}

function setProp(element, key, value) {
  if (value === undefined || value === null || value === false) return;
  if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
  else if (key === "class") element.setAttribute("class", [element.getAttribute("class"), value].filter(Boolean).join(" "));
  else if (key === "value") element.value = value;
  else if (key === "checked" || key === "selected" || key === "disabled") element[key] = Boolean(value);
  // Through the object model, which a policy without inline styles allows, as it never parses text.
  else if (key === "vars") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
  else element.setAttribute(key, value === true ? "" : SHOWN.has(key) ? visible(value) : String(value));
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return element;
}

/** Replaces the children. */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** Sets a text only where it differs, so that screen readers repeat nothing. */
export function say(element, text) {
  const said = visible(text);
  if (element.textContent !== said) element.textContent = said;
}
