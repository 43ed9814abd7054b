// Binary entries: the bytes behind a record, as text, image or hex, and as a download.
//
// A record whose meta has a content type and whose data is base64 is an entry of bytes. Nothing of it is ever markup: an
// image is shown only if its first bytes are those of the type that it claims, out of a short list without SVG, and in
// an image element, which runs no scripts. A download is named .bin unless its type is on that list.

import { h } from "./dom.js";
import { bytes as size, count } from "./format.js";
import { button } from "./parts.js";

const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;
const HEX_BYTES = 2048;
const TEXT_BYTES = 64 * 1024;
const IMAGE_BYTES = 8 << 20;
const IMAGES = {
  "image/png": ["png", (at) => at(0, 0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)],
  "image/jpeg": ["jpg", (at) => at(0, 0xff, 0xd8, 0xff)],
  "image/gif": ["gif", (at) => at(0, 0x47, 0x49, 0x46, 0x38)],
  "image/webp": ["webp", (at) => at(0, 0x52, 0x49, 0x46, 0x46) && at(8, 0x57, 0x45, 0x42, 0x50)],
};

/** `{type, base64, length}` of a record that is an entry of bytes; null of any other. */
export function binaryOf(record) {
  const type = record.meta?.["content-type"];
  if (typeof type !== "string" || typeof record.data !== "string" || record.data.length % 4 || !BASE64.test(record.data)) return null;
  const padding = record.data.endsWith("==") ? 2 : record.data.endsWith("=") ? 1 : 0;
  return { type, base64: record.data, length: (record.data.length / 4) * 3 - padding };
}

/** One line for a list. */
export const binaryLine = ({ type, length }) => `${type}, ${size(length)}`;

const decode = (base64) => Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
const bare = (type) => type.split(";")[0].trim().toLowerCase();

/** The type of an image that may be shown; null for anything else. */
function imageType(type, data) {
  const found = IMAGES[bare(type)];
  if (!Object.hasOwn(IMAGES, bare(type)) || data.length > IMAGE_BYTES) return null;
  return found[1]((from, ...expected) => expected.every((one, i) => data[from + i] === one)) ? bare(type) : null;
}

/** The preview of an entry, and a button to download it. */
export function preview(binary, name) {
  const data = decode(binary.base64);
  const image = imageType(binary.type, data);
  const text = image === null && bare(binary.type).startsWith("text/") ? textOf(data) : null;
  return [
    h("div.row", button("Download", () => save(new Blob([data], { type: "application/octet-stream" }), `${name}.${image ? IMAGES[image][0] : "bin"}`), { kind: "small", icon: "down" })),
    image ? h("img.preview", { src: `data:${image};base64,${binary.base64}`, alt: "Preview of the entry" }) : null,
    text === null ? null : h("pre.text", { tabindex: "0", role: "region", "aria-label": "Text of the entry" }, text),
    h("h3", data.length > HEX_BYTES ? `Hex, the first ${count(HEX_BYTES)} bytes` : "Hex"),
    h("pre.text.hex", { tabindex: "0", role: "region", "aria-label": "Hex of the entry" }, hex(data.subarray(0, HEX_BYTES))),
  ];
}

function textOf(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data.subarray(0, TEXT_BYTES), { stream: data.length > TEXT_BYTES }) + (data.length > TEXT_BYTES ? "\n…" : "");
  } catch {
    return null;
  }
}

const two = (n) => n.toString(16).padStart(2, "0");

/** Rows of 16 bytes: offset, hex, and the printable characters of ASCII. */
export function hex(data) {
  const rows = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const digits = row.map(two).join(" ").padEnd(47);
    rows.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${row.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("")}`);
  }
  return rows.join("\n");
}

/** A file name out of a name that may hold anything. */
export const fileName = (name) => name.replace(/[^A-Za-z0-9._-]+/g, "_").slice(0, 120) || "topic";

/** Gives a file to the browser to download. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
