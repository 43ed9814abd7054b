// A table that is kept up to date: a row whose key is unchanged stays the same element, so that the keyboard, the
// selection and the screen reader stay where they are.

import { fill, h, say } from "./dom.js";
import { ago, iso } from "./format.js";

/** A cell is a node, a text, or what `since` makes. */
export function liveTable(caption) {
  const head = h("tr");
  const body = h("tbody");
  const element = h("div.scrolls", { tabindex: "0", role: "region", "aria-label": caption }, h("table", h("caption.unseen", caption), h("thead", head), body));
  let columns = [];
  let rows = new Map();

  /** Columns are `{title, cell, class}`. */
  function setColumns(all) {
    columns = all;
    rows.clear();
    fill(head, columns.map((one) => h("th", { scope: "col", class: one.class }, one.title)));
  }

  /** Shows the items; two of them with an equal key look the same. */
  function show(items, keyOf) {
    const kept = rows;
    rows = new Map(items.map((item) => { const key = keyOf(item); return [key, kept.get(key) ?? drawn(item)]; }));
    const after = [...rows.values()].map((row) => row.element);
    if (body.children.length !== after.length || after.some((one, i) => one !== body.children[i])) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      body.replaceChildren(...after);
      if (focused) (focused.isConnected ? focused : element).focus({ preventScroll: true });
    }
    element.hidden = !items.length;
  }

  function drawn(item) {
    const laters = [];
    const cells = columns.map((one) => {
      const made = one.cell(item);
      if (made?.later) laters.push(made.later);
      return h("td", { class: one.class }, made?.later ? made.element : made);
    });
    return { element: h("tr", cells), laters };
  }

  /** Says the times anew. */
  function tick() { for (const row of rows.values()) row.laters.forEach((later) => later()); }

  return { element, setColumns, show, tick };
}

/** A time that is said anew as it passes. */
export function since(ms) {
  const element = h("time", { datetime: iso(ms), title: iso(ms) }, ago(ms));
  return { element, later: () => say(element, ago(ms)) };
}
