// Export of records and hits as NDJSON or CSV.
//
// Pages are read one after the other and handed to the browser as parts of a file, so that the page itself holds one of
// them at a time. An export ends at a number of records and bytes and states so. In CSV, a text that a spreadsheet would
// take for a formula begins with an apostrophe.

import { ApiError } from "./api.js";
import { fileName, save } from "./binary.js";
import { h } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { plain } from "./json.js";
import { button, field, newId, select, toast } from "./parts.js";

const RECORDS_MAX = 100_000;
const BYTES_MAX = 256 << 20;
const LIMITS = { 1000: "1,000", 10000: "10,000", 100000: "100,000" };
const FORMULA = /^[\s]*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;
const NUMBER = /^-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/** A value as a cell of CSV, always in quotes. Objects and arrays are JSON. */
export function cell(value) {
  if (value === undefined || value === null) return "";
  let text = typeof value === "string" ? value : plain(value);
  if (typeof value === "string" && FORMULA.test(text) && !NUMBER.test(text)) text = `'${text}`;
  return `"${text.replaceAll('"', '""')}"`;
}

const FORMATS = {
  ndjson: { label: "NDJSON: one JSON object per line", type: "application/x-ndjson", head: () => "", row: (row) => `${plain(row)}\n` },
  csv: { label: "CSV: one row per record", type: "text/csv", head: (columns) => `${columns.map((one) => cell(one.name)).join(",")}\r\n`, row: (row, columns) => `${columns.map((one) => cell(one.of(row))).join(",")}\r\n` },
};

/** Opens the dialog. `pages(signal)` yields lists of rows; `columns` are those of CSV: `{name, of(row)}`. */
export function exportDialog({ title, name, pages, columns, hint }) {
  const format = select(Object.fromEntries(Object.entries(FORMATS).map(([key, one]) => [key, one.label])), "ndjson");
  const most = select(LIMITS, "10000");
  const state = h("p.soft", { role: "status" });
  const stopped = new AbortController();
  const heading = newId("dialog");
  const go = button("Export", run, { kind: "primary" });
  const box = h("dialog", { "aria-labelledby": heading, onclose: () => { stopped.abort(); box.remove(); } },
    h("h2", { id: heading }, title),
    h("div.stack", h("p", hint), field("Format", format), field("Maximum number of records", most, `An export ends at ${bytes(BYTES_MAX)}.`), state),
    h("div.actions", button("Cancel", () => box.close()), go));
  document.body.append(box);
  box.showModal();

  async function run() {
    go.disabled = format.disabled = most.disabled = true;
    const kind = FORMATS[format.value];
    const wanted = Math.min(RECORDS_MAX, Number(most.value));
    const parts = [kind.head(columns)];
    let rows = 0;
    let size = 0;
    let more = false;
    try {
      for await (const page of pages(stopped.signal, wanted)) {
        const some = page.slice(0, wanted - rows);
        const part = new Blob([some.map((row) => kind.row(row, columns)).join("")]);
        parts.push(part);
        rows += some.length;
        size += part.size;
        state.textContent = `${plural(rows, "record")}, ${bytes(size)}`;
        more = some.length < page.length;
        if (more || size >= BYTES_MAX) { more = true; break; }
        if (rows >= wanted) { more = true; break; }
      }
      if (stopped.signal.aborted) return;
      save(new Blob(parts, { type: kind.type }), `${fileName(name)}.${format.value}`);
      toast(`Exported ${plural(rows, "record")}${more && rows >= wanted ? `, the maximum of ${count(wanted)}` : more ? `, up to the maximum of ${bytes(BYTES_MAX)}` : ""}.`);
      box.close();
    } catch (error) {
      if (stopped.signal.aborted || error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      state.textContent = error.message;
      go.disabled = format.disabled = most.disabled = false;
    }
  }
}
