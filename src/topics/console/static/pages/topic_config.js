// What a topic is told to be, what each word means, and changing it.

import { del, may, put, topicPath } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { button, card, confirmWord, failure, note, select, table, textField, toast } from "../parts.js";

const ms = (value) => (value ? duration(value) : "");
const FIELDS = {
  durability: ["What an acknowledged append survives. ephemeral: no restart; memory and disk: the end of the process; fsync: a power cut.", { ephemeral: "ephemeral", memory: "memory", disk: "disk", fsync: "fsync" }],
  cap_records: ["Maximum of live records; 0 is no cap.", "number", (value) => (value ? count(value) : "")],
  cap_bytes: ["Maximum of live bytes of data and meta; 0 is no cap.", "number", (value) => (value ? bytes(value) : "")],
  ttl_ms: ["Records older than this are gone; 0 is never.", "number", ms],
  discard: ["At the cap: the oldest go and readers are told, or the append is refused.", { old: "old", reject: "reject" }],
  priority: ["Precedence when the server is pressed, -1000 to 1000; empty lets reading decide.", "nullable"],
  auto_priority: ["Without a priority: recently read topics come first.", "switch"],
  idempotency_window_ms: ["How long idempotency keys are remembered.", "number", ms],
  dedupe_node: ["Readers do not get back what their own node wrote.", "switch"],
  lease_ms: ["Queues: how long a claimed job belongs to its worker.", "number", ms, "queue"],
  claim_jitter_ms: ["Queues: how long claims are gathered, so that jobs are shared fairly.", "number", ms, "queue"],
  max_deliveries: ["Queues: after so many deliveries a job goes to the dead letters; 0 is never.", "number", null, "queue"],
  dead_letter: ["Queues: the topic that such jobs go to.", "text", null, "queue"],
  leases_durable: ["Queues: whether leases and counts of deliveries survive a restart.", "switch", null, "queue"],
};

export default async function render({ name, info, body }) {
  const shown = Object.entries(FIELDS).filter(([, [, , , only]]) => only === undefined || only === info.type);
  const inputs = Object.fromEntries(shown.map(([key, [, kind]]) => [key, input(key, kind, info.config[key])]));
  for (const one of Object.values(inputs)) one.disabled = !may("admin");
  const outcome = h("div", { "aria-live": "polite" });
  const list = table("Config", [
    { title: "Field", class: "name", cell: ([key]) => h("label", { for: inputs[key].id }, key) },
    { title: "Value", cell: ([key]) => inputs[key] },
    { title: "", class: "soft", cell: ([key, [, , said]]) => said?.(info.config[key]) ?? "" },
    { title: "Meaning", class: "soft meaning", cell: ([, [meaning]]) => meaning },
  ], shown);
  fill(body,
    note("What is here holds from the moment it is saved, for records that are there as well: a lower cap or age takes them at once."),
    list.element,
    may("admin") ? h("div.row", button("Save", save, { kind: "primary" }), outcome) : null,
    may("delete") && card("Delete", h("div.row", h("p.grow", "Deletes the topic with its records and its routers. This cannot be undone."),
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
    const go = await confirmWord(`Delete ${name}?`, `${count(info.count)} live records go with it, and no reader gets them any more.`, name, "Delete for good");
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
