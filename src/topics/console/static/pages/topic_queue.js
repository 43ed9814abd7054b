// A queue: jobs by state, leases by worker, dead letters.

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
  const figures = { ready: figure("Ready", { hint: "Jobs that can be claimed" }), in_flight: figure("In flight", { hint: "Jobs leased to workers" }), delayed: figure("Delayed", { hint: "Jobs that can be claimed later" }), dead_lettered: figure("Dead letters", { hint: "Jobs in the dead-letter topic" }) };
  const band = h("div");
  const workers = h("div.row");
  const nobody = h("div", { hidden: true }, note("No job is leased."));
  const leases = table("Leases", [
    { title: "Job", class: "number", cell: (one) => h("a", { href: topicLink(name, "live", { seq: one.$seq }) }, count(one.$seq)) },
    { title: "Worker", class: "name", cell: (one) => one.node },
    { title: "Deliveries", class: "number", cell: (one) => (most ? `${one.deliveries} of ${most}` : count(one.deliveries)) },
    { title: "Lease ends", class: "number", cell: (one) => ago(one.deadline) },
    { title: "Actions", cell: (one) => may("write") && h("div.row", button("Extend", () => extend(one), { kind: "small" }), button("Release", () => giveBack(one), { kind: "small" }), button("Acknowledge", () => acknowledge(one), { kind: "small bad" })) },
  ]);
  const letters = h("div");
  fill(body, h("div.figures", Object.values(figures).map((one) => one.element)), band,
    card("Leases by worker", workers, nobody, leases.element), dead ? letters : null);
  if (dead) drawLetters();
  await context.every(LOOK_MS, look);

  async function look() {
    const [info, held] = await Promise.all([get(topicPath(name), { touch: false }, signal), get(`${topicPath(name)}/leases`, { page_size: PAGE }, signal)]);
    const { queue } = info;
    for (const [key, one] of Object.entries(figures)) if (key !== "dead_lettered") one.set(count(queue[key]));
    const letters = dead ? await get(topicPath(dead), { touch: false }, signal).catch((error) => { if (error.name === "AbortError") throw error; return null; }) : null;
    figures.dead_lettered.set(letters === null ? "–" : count(letters.count), `${count(queue.dead_lettered)} so far`);
    fill(band, shares(queue));
    const byWorker = Map.groupBy(held.leases, (one) => one.node);
    fill(workers, [...byWorker].map(([node, all]) => h("span.badge.accent", node, ` ${count(all.length)}`)), held.next_after ? h("span.soft", `The first ${PAGE} leases are shown.`) : null);
    leases.show(held.leases);
    leases.element.hidden = !held.leases.length;
    nobody.hidden = held.leases.length > 0;
  }

  async function settle(done, verb) {
    try {
      const answer = await done;
      toast(answer.skipped.length ? "The lease has ended: the worker does not hold the job any more." : verb, answer.skipped.length ? "bad" : "");
      await look();
    } catch (error) {
      if (error instanceof ApiError) toast(error.message, "bad"); else throw error;
    }
  }

  const held = (one) => ({ node: one.node, seqs: [one.$seq] });
  const extend = (one) => settle(post(`${topicPath(name)}/extend`, { ...held(one), lease_ms: lease }), `Extended by ${duration(lease)}.`);
  async function giveBack(one) {
    if (await sure("Release the job?", `The lease of ${one.node} on job ${count(one.$seq)} ends, and the job can be claimed again. The worker may still be working on it.`, "Release")) {
      await settle(post(`${topicPath(name)}/nack`, held(one)), "Released.");
    }
  }
  async function acknowledge(one) {
    if (await sure("Acknowledge the job?", `Job ${count(one.$seq)} counts as done by ${one.node} and is deleted.`, "Acknowledge")) {
      await settle(post(`${topicPath(name)}/ack`, held(one)), "Acknowledged.");
    }
  }

  function drawLetters() {
    fill(letters, card("Dead letters", h("div.row",
      h("p.grow", most ? `After ${plural(most, "delivery", "deliveries")} a job moves to ` : "Jobs that fail too often move to ", h("a", { href: topicLink(dead) }, mono(dead)), "."),
      may("read", "write", "delete") && button("Redrive…", redrive))));
  }

  async function redrive() {
    const much = h("input", { type: "number", min: "1", max: "1000", value: "100" });
    const form = h("div.stack", h("p", `Move dead letters of this queue from ${dead} back into it, oldest first. Their deliveries are counted from zero.`), field("Maximum number of jobs", much));
    if (await dialog("Redrive dead letters", form, [["Cancel", null], ["Redrive", true, "primary"]]) !== true) return;
    try {
      const answer = await post(`${topicPath(name)}/redrive`, { max: Number(much.value) || 100 });
      toast(answer.moved ? `Moved ${plural(answer.moved, "job")} back${answer.more ? "; there may be more" : ""}.` : "There are no dead letters of this queue.");
      await look();
    } catch (error) {
      dialog("No job was moved", failure(error), [["Close", null]]);
    }
  }
}

/** The jobs by state, as a bar. */
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
