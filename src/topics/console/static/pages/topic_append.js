// The form that appends a record. The text is sent byte for byte: numbers stay as they were typed.

import { isTopicName, json, ask, streamPath, topicPath } from "../api.js";
import { fill, h } from "../dom.js";
import { count, duration, plural } from "../format.js";
import { topicLink } from "../links.js";
import { badge, button, card, failure, field, mono, textField } from "../parts.js";

export default async function render({ name, info, registry, body }) {
  const plainTopic = isTopicName(name);
  const data = h("textarea", { rows: 12, spellcheck: "false", "data-slash": true }, '{\n  "hello": "world"\n}');
  const tag = textField({ disabled: Boolean(registry?.routingKey) });
  const node = textField({ value: "console" });
  const meta = textField({ placeholder: "{}" });
  const key = textField();
  const delay = h("input", { type: "number", min: "0", value: "0" });
  const problem = h("p.soft", { "aria-live": "polite" });
  const outcome = h("div", { "aria-live": "polite" });
  const send = button("Append", append, { kind: "primary" });
  const form = h("form.stack", { onsubmit: (event) => { event.preventDefault(); append(); } },
    field("Data", data, "Any JSON. It is stored as you type it. Ctrl Enter appends."), problem,
    h("div.columns",
      field("Tag", tag, registry?.routingKey ? `The schema reads it from ${registry.routingKey.jsonPointer}.` : "A label to filter and delete by."),
      plainTopic ? field("Node", node, "The writer. Readers with the same node do not get the record.") : null,
      plainTopic ? field("Meta", meta, "An object with headers.") : null,
      plainTopic ? field("Idempotency key", key, "A second append with the same key is ignored.") : null,
      info.type === "queue" ? field("Delay in ms", delay, "The job cannot be claimed before.") : null),
    h("div.row", send, outcome));
  data.addEventListener("input", check);
  data.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) append(); });
  fill(body, card("Append a record", form));

  function check() {
    try {
      JSON.parse(data.value);
      problem.textContent = "";
      data.removeAttribute("aria-invalid");
      return true;
    } catch (error) {
      problem.textContent = `Not valid JSON: ${error.message}`;
      data.setAttribute("aria-invalid", "true");
      return false;
    }
  }

  async function append() {
    if (!check()) return data.focus();
    send.disabled = true;
    try {
      if (plainTopic) await appendTopic(); else await appendStream();
    } catch (error) {
      fill(outcome, failure(error));
    } finally {
      send.disabled = false;
    }
  }

  async function appendTopic() {
    const parts = [`"data":${data.value}`];
    if (tag.value) parts.push(`"tag":${JSON.stringify(tag.value)}`);
    if (meta.value.trim()) parts.push(`"meta":${meta.value}`);
    const around = { node: node.value || undefined, idempotency_key: key.value || undefined, delay_ms: Number(delay.value) || undefined, create: false };
    const raw = `${JSON.stringify(around).slice(0, -1)},"records":[{${parts.join(",")}}]}`;
    const made = await json("POST", topicPath(name), { raw });
    const { performance } = made;
    fill(outcome, badge(made.deduped ? "duplicate" : "appended", made.deduped ? "warn" : "good"), " as ",
      h("a", { href: topicLink(name, "live", { seq: made.first_seq }) }, `seq ${count(made.first_seq)}`),
      h("span.soft", ` in ${duration(performance.server_total_ms)}${performance.fsync_ms ? `, of which ${duration(performance.fsync_ms)} for the disk` : ""}`),
      made.differs ? h("span.soft", "; the stored record is different") : null);
  }

  async function appendStream() {
    const headers = tag.value ? { "stream-key": tag.value } : {};
    const answer = await ask("POST", streamPath(name), { raw: data.value, headers });
    fill(outcome, badge("appended", "good"), h("span.soft", ` the stream ends at ${answer.headers.get("stream-next-offset")}`), mono(""), plural(1, "entry", "entries"));
  }
}
