// Who I am here, what I may do, and what this server allows. Nothing secret is asked for or shown.

import { get, self } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { badge, card, facts, mono, note, table } from "../parts.js";

export default async function render(context) {
  const me = self();
  const [health, ready] = await Promise.all([get("/v0/health", {}, context.signal), get("/v0/ready", {}, context.signal)]);
  context.put("Keys and settings",
    h("div.columns",
      card("Your key", mine(me)),
      card("Server", facts([
        ["Version", mono(health.version)], ["Up for", duration(health.uptime_ms)], ["Topics", count(ready.topics)],
        ["Keys", me.keys_required ? badge("required", "good") : badge("off: any client that can reach this address has full access", "warn")],
        ["Shards without writes", ready.read_only_shards.length ? badge(ready.read_only_shards.join(", "), "bad") : "none"],
        ["Disk", ready.disk_full ? badge("full", "bad") : badge("has room", "good")],
        ["Description", h("a", { href: "v0/openapi.json" }, "OpenAPI document")],
      ]))),
    card("Limits", note("Every one is a setting of the server, with TOPICS_ before its name in capitals."), limits(me.limits)));
}

function mine({ key }) {
  const all = ["read", "write", "delete", "admin"];
  return facts([
    ["Key", key.name ? mono(key.name) : "none is needed"],
    ["May", h("div.row", all.map((scope) => badge(scope, key.scopes.includes(scope) ? "good" : "")))],
    ["May not", all.filter((scope) => !key.scopes.includes(scope)).join(", ") || "nothing is kept from you"],
    ["Topics", key.prefixes.length ? h("div.row", key.prefixes.map((prefix) => badge(`${prefix}…`))) : "all"],
  ]);
}

function limits(all) {
  return table("Limits", [
    { title: "Limit", class: "name", cell: ([name]) => name },
    { title: "Value", class: "number", cell: ([name, value]) => (value === 0 ? "none" : name.includes("bytes") ? bytes(value) : count(value)) },
    { title: "Exactly", class: "number", cell: ([, value]) => count(value) },
  ], Object.entries(all)).element;
}
