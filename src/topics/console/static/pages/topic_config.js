// The config of a topic, with the meaning of each field.

import { del, may, put, topicPath } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration, plural } from "../format.js";
import { button, card, confirmWord, failure, note, select, table, textField, toast } from "../parts.js";

const ms = (value) => (value ? duration(value) : "");
const FIELDS = {
  durability: ["What an acknowledged append survives. ephemeral: no restart; memory and disk: the end of the process; fsync: a power cut; remote: the loss of the machine.", { ephemeral: "ephemeral", memory: "memory", disk: "disk", fsync: "fsync", remote: "remote" }],
  cap_records: ["Maximum of live records; 0 is no cap.", "number", (value) => (value ? count(value) : "")],
  cap_bytes: ["Maximum of live bytes of data and meta; 0 is no cap.", "number", (value) => (value ? bytes(value) : "")],
  ttl_ms: ["Retention time: older records are evicted; 0 is forever.", "number", ms],
  discard: ["At the cap: evict the oldest records, or refuse the append.", { old: "old", reject: "reject" }],
  retain_for_consumers: ["Bytes up to which records behind the slowest consumer are kept; 0 is not at all.", "number", (value) => (value ? bytes(value) : "")],
  priority: ["Scheduling priority under pressure, -1000 to 1000; empty: automatic.", "nullable"],
  auto_priority: ["Without a priority: recently read topics come first.", "switch"],
  idempotency_window_ms: ["How long idempotency keys are remembered.", "number", ms],
  dedupe_node: ["Reads leave out records of the reader's own node.", "switch"],
  lease_ms: ["Queues: default lease (visibility timeout).", "number", ms, "queue"],
  claim_jitter_ms: ["Queues: how long claims are gathered before jobs are shared out.", "number", ms, "queue"],
  max_deliveries: ["Queues: deliveries before a job moves to the dead-letter topic; 0 is no limit.", "number", null, "queue"],
  dead_letter: ["Queues: the dead-letter topic.", "text", null, "queue"],
  max_per_second: ["Queues: most jobs handed out per second; 0 is no limit.", "number", (value) => (value ? count(value) : ""), "queue"],
  max_leased: ["Queues: most jobs leased at once; 0 is no limit.", "number", (value) => (value ? count(value) : ""), "queue"],
  fair_tags: ["Queues: the next job is of the tag with the fewest leased jobs.", "switch", null, "queue"],
  result_retention_ms: ["Queues: how long results of jobs are kept; 0 keeps none.", "number", ms, "queue"],
  leases_durable: ["Queues: leases and delivery counts survive a restart.", "switch", null, "queue"],
};

export default async function render({ name, info, body }) {
  const shown = Object.entries(FIELDS).filter(([, [, , , only]]) => only === undefined || only === info.type);
  const inputs = Object.fromEntries(shown.map(([key, [, kind]]) => [key, input(key, kind, info.config[key])]));
  for (const one of Object.values(inputs)) one.disabled = !may("admin");
  const outcome = h("div", { "aria-live": "polite" });
  const list = table("Config", [
    { title: "Field", class: "name", cell: ([key]) => h("label", { for: inputs[key].id }, key) },
    { title: "Value", cell: ([key]) => inputs[key] },
    { title: "Readable", class: "soft wide", cell: ([key, [, , said]]) => said?.(info.config[key]) ?? "" },
    { title: "Meaning", class: "soft meaning", cell: ([, [meaning]]) => meaning },
  ], shown);
  fill(body,
    note("Changes apply at once, also to stored records: a lower cap or retention time evicts them."),
    list.element,
    may("admin") ? h("div.row", button("Save", save, { kind: "primary" }), outcome) : null,
    may("delete") && card("Delete", h("div.row", h("p.grow", "Delete the topic with its records and routers. This cannot be undone."),
      button("Delete this topic", remove, { kind: "bad" }))));

  function requestedConfig() {
    const config = { ...info.config };
    delete config.durable;
    for (const [key, [, kind]] of shown) {
      const { value, checked } = inputs[key];
      if (kind === "switch") config[key] = checked;
      else if (kind === "number") config[key] = Number(value || 0);
      else if (kind === "nullable") config[key] = value === "" ? null : Number(value);
      else if (kind === "text") config[key] = value === "" ? null : value;
      else config[key] = value;
    }
    return config;
  }

  async function save() {
    try {
      const answer = await put(topicPath(name), requestedConfig(), { query: { strict: true } });
      info.config = answer.config;
      fill(outcome, "");
      toast("Saved.");
      list.show(shown);
    } catch (error) {
      fill(outcome, failure(error));
    }
  }

  async function remove() {
    const go = await confirmWord(`Delete ${name}?`, `${plural(info.count, "live record")} will be deleted. This cannot be undone.`, name, "Delete forever");
    if (!go) return;
    try {
      await del(topicPath(name));
      toast(`${name} is deleted.`);
      location.hash = "#/topics";
    } catch (error) {
      fill(outcome, failure(error));
    }
  }
}

function input(key, kind, value) {
  const id = `config-${key}`;
  if (kind === "switch") return h("input", { id, type: "checkbox", checked: value });
  if (kind === "number" || kind === "nullable") return h("input", { id, type: "number", value: value ?? "" });
  if (kind === "text") return textField({ id, value: value ?? "" });
  return select(kind, value, { id });
}
