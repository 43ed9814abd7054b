// A queue: how many jobs are where, who holds which, and dead letters.

import { ApiError, get, may, post, topicPath } from "../api.js";
import { fill, h, svg } from "../dom.js";
import { ago, count, duration, plural } from "../format.js";
import { topicLink } from "../links.js";
import { badge, button, card, dialog, empty, failure, field, figure, mono, note, sure, table, toast } from "../parts.js";

const LOOK_MS = 1500;
const PAGE = 100;

export default async function render(context) {
  const { name, body, signal } = context;
  const { dead_letter: dead, max_deliveries: most, lease_ms: lease } = context.info.config;
  const figures = { ready: figure("Ready", { hint: "Could be claimed now" }), in_flight: figure("In flight", { hint: "Held by workers" }), delayed: figure("Delayed", { hint: "Held back until a moment" }), dead_lettered: figure("Dead letters", { hint: "Since the queue was created" }) };
  const band = h("div");
  const workers = h("div.row");
  const nobody = h("div", { hidden: true }, note("No worker holds a job."));
  const leases = table("Leases", [
    { title: "Job", class: "number", cell: (one) => h("a", { href: topicLink(name, "live", { seq: one.$seq }) }, count(one.$seq)) },
    { title: "Worker", class: "name", cell: (one) => one.node },
    { title: "Deliveries", class: "number", cell: (one) => (most ? `${one.deliveries} of ${most}` : count(one.deliveries)) },
    { title: "Its lease ends", class: "number", cell: (one) => ago(one.deadline) },
    { title: "", cell: (one) => may("write") && h("div.row", button("Extend", () => extend(one), { kind: "small" }), button("Give back", () => giveBack(one), { kind: "small" }), button("Acknowledge", () => acknowledge(one), { kind: "small bad" })) },
  ]);
  const letters = h("div");
  fill(body, h("div.figures", Object.values(figures).map((one) => one.element)), band,
    card("Held by workers", workers, nobody, leases.element), dead ? letters : null);
  if (dead) drawLetters();
  await context.every(LOOK_MS, look);

  async function look() {
    const [info, held] = await Promise.all([get(topicPath(name), { touch: false }, signal), get(`${topicPath(name)}/leases`, { page_size: PAGE }, signal)]);
    const { queue } = info;
    for (const [key, one] of Object.entries(figures)) one.set(count(queue[key]));
    fill(band, shares(queue));
    const byWorker = Map.groupBy(held.leases, (one) => one.node);
    fill(workers, [...byWorker].map(([node, all]) => h("span.badge.accent", node, ` ${count(all.length)}`)), held.next_after ? h("span.soft", `and more: the first ${PAGE} are here`) : null);
    leases.show(held.leases);
    leases.element.hidden = !held.leases.length;
    nobody.hidden = held.leases.length > 0;
  }

  async function settle(done, verb) {
    try {
      const answer = await done;
      toast(answer.skipped.length ? "The worker does not hold it any more." : verb, answer.skipped.length ? "bad" : "");
      await look();
    } catch (error) {
      if (error instanceof ApiError) toast(error.message, "bad"); else throw error;
    }
  }

  const held = (one) => ({ node: one.node, seqs: [one.$seq] });
  const extend = (one) => settle(post(`${topicPath(name)}/extend`, { ...held(one), lease_ms: lease }), `Extended by ${duration(lease)}.`);
  async function giveBack(one) {
    if (await sure("Give the job back?", `Job ${count(one.$seq)} is taken from ${one.node}, which may still be working on it, and can be claimed again.`, "Give back")) {
      await settle(post(`${topicPath(name)}/nack`, held(one)), "Given back.");
    }
  }
  async function acknowledge(one) {
    if (await sure("Acknowledge the job?", `Job ${count(one.$seq)} is deleted for good, as if ${one.node} had done it.`, "Acknowledge")) {
      await settle(post(`${topicPath(name)}/ack`, held(one)), "Acknowledged.");
    }
  }

  function drawLetters() {
    fill(letters, card("Dead letters", h("div.row",
      h("p.grow", most ? `After ${plural(most, "delivery", "deliveries")} a job goes to ` : "Jobs that failed too often go to ", h("a", { href: topicLink(dead) }, mono(dead)), "."),
      may("read", "write", "delete") && button("Redrive…", redrive))));
  }

  async function redrive() {
    const much = h("input", { type: "number", min: "1", max: "1000", value: "100" });
    const form = h("div.stack", h("p", `Moves dead letters of this queue from ${dead} back into it, the oldest first. They begin again with no deliveries.`), field("At most", much));
    if (await dialog("Redrive dead letters", form, [["Cancel", null], ["Redrive", true, "primary"]]) !== true) return;
    try {
      const answer = await post(`${topicPath(name)}/redrive`, { max: Number(much.value) || 100 });
      toast(answer.moved ? `${plural(answer.moved, "job")} came back${answer.more ? "; there may be more" : ""}.` : "There was nothing to bring back.");
      await look();
    } catch (error) {
      dialog("Nothing was moved", failure(error), [["Close", null]]);
    }
  }
}

/** The jobs there are, by where they are. */
export function shares(queue) {
  const all = queue.ready + queue.in_flight + queue.delayed;
  if (!all) return empty("The queue is empty", badge("OK", "good"));
  let x = 0;
  const said = `${count(queue.ready)} ready, ${count(queue.in_flight)} in flight, ${count(queue.delayed)} delayed`;
  return svg("svg.shares", { viewBox: "0 0 600 12", preserveAspectRatio: "none", role: "img", "aria-label": said }, svg("title", said),
    ["ready", "in_flight", "delayed"].map((key) => {
      const width = (queue[key] / all) * 600;
      const part = svg(`rect.${key}`, { x: x.toFixed(1), y: 0, width: width.toFixed(1), height: 12 });
      x += width;
      return part;
    }));
}
