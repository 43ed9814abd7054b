// JSON for reading: indented, coloured, with exact numbers. Long values are truncated with a note.

import { Exact } from "./api.js";
import { h } from "./dom.js";

const NODES_MAX = 4000;
const TEXT_MAX = 20_000;

/** A block with a value, in colours. */
export function pretty(value, label = "JSON") {
  const block = h("pre.json", { tabindex: "0", role: "region", "aria-label": label });
  const budget = { left: NODES_MAX };
  write(block, value, 0, budget);
  if (budget.left <= 0) block.append(h("span.soft", "\n… cut here; read the rest with the API"));
  return block;
}

function write(out, value, depth, budget) {
  budget.left -= 1;
  if (budget.left <= 0) return;
  if (Array.isArray(value)) writeMany(out, "[", "]", value.map((one) => [null, one]), depth, budget);
  else if (value instanceof Exact) out.append(h("span.n", value.text));
  else if (value !== null && typeof value === "object") writeMany(out, "{", "}", Object.entries(value), depth, budget);
  else if (typeof value === "string") out.append(h("span.s", JSON.stringify(cut(value))));
  else out.append(h(typeof value === "number" ? "span.n" : "span.w", String(value)));
}

function writeMany(out, open, close, entries, depth, budget) {
  if (!entries.length) return out.append(open + close);
  out.append(open);
  const inner = "  ".repeat(depth + 1);
  let first = true;
  for (const [name, one] of entries) {
    if (budget.left <= 0) return;
    out.append(`${first ? "" : ","}\n${inner}`);
    first = false;
    if (name !== null) out.append(h("span.k", JSON.stringify(cut(name))), ": ");
    write(out, one, depth + 1, budget);
  }
  out.append(`\n${"  ".repeat(depth)}${close}`);
}

const cut = (text) => (text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text);

/** One line of it, for lists. */
export function oneLine(value, most = 400) {
  const text = typeof value === "string" ? value : plain(value);
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** The value as text that can be sent again. */
export function plain(value, indent) {
  if (typeof JSON.rawJSON === "function") return JSON.stringify(value, null, indent);
  return JSON.stringify(value, (_, one) => (one instanceof Exact ? Number(one.text) : one), indent);
}
