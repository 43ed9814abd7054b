// A queue: its jobs by state, the leases by worker, dead letters, pause and resume.

import { ApiError, get, may, post, put, topicPath } from "../api.js";
import { fill, h, svg } from "../dom.js";
import { count, plural } from "../format.js";
import { topicLink } from "../links.js";
import { badge, button, card, dialog, empty, failure, field, figure, mono, note, toast } from "../parts.js";
import { jobList } from "./topic_jobs.js";

const LOOK_MS = 1500;
const PAGE = 100;

export default async function render(context) {
  const { name, body, signal } = context;
  const { dead_letter: dead, max_deliveries: most, max_per_second: rate, max_leased: width } = context.info.config;
  const figures = { ready: figure("Ready", { hint: "Jobs that can be claimed" }), in_flight: figure("In flight", { hint: "Jobs leased to workers" }), delayed: figure("Delayed", { hint: "Jobs that can be claimed later" }), dead_lettered: figure("Dead letters", { hint: "Jobs in the dead-letter topic" }) };
  const band = h("div");
  const workers = h("div.row");
  const pausing = h("div.row");
  const letters = h("div");
  const limits = [rate ? `${plural(rate, "job")} a second` : null, width ? `${count(width)} leased at once` : null].filter(Boolean);
  let paused = null;
  const jobs = jobList(context, look);
  fill(body, h("div.figures", Object.values(figures).map((one) => one.element)), band,
    card("Workers", h("div.row", h("div.grow", workers), pausing), limits.length ? note(`At most ${limits.join(" and ")}.`) : null), jobs.element, dead ? letters : null);
  if (dead) drawLetters();
  await context.every(LOOK_MS, look);

  async function look() {
    const [info, held] = await Promise.all([get(topicPath(name), { touch: false }, signal), get(`${topicPath(name)}/leases`, { page_size: PAGE }, signal)]);
    const { queue } = info;
    for (const [key, one] of Object.entries(figures)) if (key !== "dead_lettered") one.set(count(queue[key]));
    const letters = dead ? await get(topicPath(dead), { touch: false }, signal).catch((error) => { if (error.name === "AbortError") throw error; return null; }) : null;
    figures.dead_lettered.set(letters === null ? "–" : count(letters.count), `${count(queue.dead_lettered)} so far`);
    fill(band, shares(queue));
    drawPause(queue.paused === true);
    const byWorker = Map.groupBy(held.leases, (one) => one.node);
    fill(workers, byWorker.size ? [...byWorker].map(([node, all]) => h("span.badge.accent", node, ` ${count(all.length)}`)) : note("No job is leased."), held.next_after ? h("span.soft", `The first ${PAGE} leases are counted.`) : null);
    await jobs.look({ ready: queue.ready, leased: queue.in_flight, delayed: queue.delayed, dead: letters?.count ?? null }, JSON.stringify([queue, info.head_seq, letters?.head_seq, letters?.count]));
  }

  /** Drawn only when it changes: the button keeps the keyboard. */
  function drawPause(is) {
    if (paused === is) return;
    paused = is;
    fill(pausing, is ? badge("paused: workers get no jobs", "warn") : null,
      may("admin") && button(is ? "Resume the queue" : "Pause the queue", () => pause(!is), { kind: is ? "primary" : "", icon: is ? "play" : "pause" }));
    pausing.hidden = !pausing.firstChild;
  }

  async function pause(is) {
    try {
      await put(`${topicPath(name)}/queue`, { paused: is });
      toast(is ? "Paused. Workers finish the jobs they have and get no others." : "Resumed.");
      await look();
      pausing.querySelector("button")?.focus();
    } catch (error) {
      if (error instanceof ApiError) toast(error.message, "bad"); else throw error;
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
