// The rights of the key, and the limits of the server. No secret is requested or shown.

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
        ["Version", mono(health.version)], ["Uptime", duration(health.uptime_ms)], ["Topics", count(ready.topics)],
        ...role(ready),
        ["Keys", me.keys_required ? badge("required", "good") : badge("off: any client that can reach this address has full access", "warn")],
        ["Read-only shards", ready.read_only_shards.length ? badge(ready.read_only_shards.join(", "), "bad") : "none"],
        ["Disk", ready.disk_full ? badge("full", "bad") : badge("OK", "good")],
        ["Description", h("a", { href: "v0/openapi.json" }, "OpenAPI document")],
      ]))),
    card("Limits", note("Each limit is a setting of the server: TOPICS_ and its name in capitals."), limits(me.limits)));
}

/** The part of the server in failover; nothing for a server without a lease. */
function role({ role, primary, primary_term: term, lag_ms: lag }) {
  if (role === "standby") {
    return [
      ["Role", badge("standby: reads only", "warn")], ["Lag", duration(lag)],
      ["Primary", primary ? h("a", { href: `${primary}/console` }, primary) : "unknown"],
    ];
  }
  return term === null ? [] : [["Role", badge("primary", "good")], ["Term", count(term)]];
}

function mine({ key }) {
  const all = ["read", "write", "delete", "admin"];
  return facts([
    ["Key", key.name ? mono(key.name) : "not needed"],
    ["Allowed", h("div.row", all.map((scope) => badge(scope, key.scopes.includes(scope) ? "good" : "")))],
    ["Not allowed", all.filter((scope) => !key.scopes.includes(scope)).join(", ") || "none"],
    ["Topics", key.prefixes.length ? h("div.row", key.prefixes.map((prefix) => badge(`${prefix}…`))) : "all"],
  ]);
}

function limits(all) {
  return table("Limits", [
    { title: "Limit", class: "name", cell: ([name]) => name },
    { title: "Value", class: "number", cell: ([name, value]) => (value === 0 ? "none" : name.includes("bytes") ? bytes(value) : count(value)) },
    { title: "Exact value", class: "number", cell: ([, value]) => count(value) },
  ], Object.entries(all)).element;
}
