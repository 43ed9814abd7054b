// The jobs of a queue by state: a list that is kept up to date, one job in full, and the operations on it.

import { ApiError, exactly, may, post, topicPath } from "../api.js";
import { h, say } from "../dom.js";
import { ago, count, duration, iso, moment, plural } from "../format.js";
import { oneLine, pretty } from "../json.js";
import { topicLink } from "../links.js";
import { liveTable, since } from "../live_table.js";
import { button, card, dialog, facts, note, sure, textField, toast } from "../parts.js";

const PAGE = 50;
const AT_ONCE = 5;
const STALE_MS = 5000;
const STATES = { ready: "Ready", leased: "Leased", delayed: "Delayed", dead: "Dead" };
const ENDED = "The lease has ended: the worker does not hold the job any more.";
const NONE = { ready: "No job is ready.", leased: "No job is leased.", delayed: "No job is delayed.", dead: "There are no dead letters of this queue." };

/**
 * `element` and `look(counts, sign)`: `counts` are the jobs of each state, and `sign` differs when the queue has
 * changed. `changed` is called after an operation.
 */
export function jobList(context, changed) {
  const { name, query, signal } = context;
  const { dead_letter: dead, max_deliveries: most, lease_ms: lease } = context.info.config;
  let state = Object.hasOwn(STATES, query.get("state")) ? query.get("state") : "ready";
  let starts = [0];
  let shown = { sign: null, at: 0, next: null };
  let turn = 0;
  const choices = Object.fromEntries(Object.keys(STATES).filter((one) => one !== "dead" || dead).map((one) => [one, button(STATES[one], () => choose(one), { kind: "state" })]));
  if (!(state in choices)) state = "ready";
  const tag = textField({ type: "search", placeholder: "Only jobs with the tag…", "aria-label": "Only jobs with the tag", "data-slash": true, value: query.get("tag") ?? "" });
  const list = liveTable("Jobs");
  const none = note();
  const first = button("First page", () => { starts = [0]; load(); }, { kind: "small" });
  const next = button("Next page", () => { starts.push(shown.next); load(); }, { kind: "small" });
  const told = h("span.soft.grow", { role: "status" });
  tag.addEventListener("input", () => { context.note({ tag: tag.value }); starts = [0]; load(); });
  const element = card("Jobs",
    h("div.row.toolbar", h("div.row.near", { role: "group", "aria-label": "State of the jobs" }, Object.values(choices)), h("div.grow", tag)),
    none, list.element, h("div.row.pages", told, first, next));
  choose(state, false);
  return { element, look };

  function choose(one, loads = true) {
    state = one;
    context.note({ state: state === "ready" ? null : state });
    for (const [key, choice] of Object.entries(choices)) choice.setAttribute("aria-pressed", String(key === state));
    list.setColumns(columns().map(([title, cell, kind]) => ({ title, cell, class: kind })));
    starts = [0];
    if (loads) load();
  }

  async function look(counts, sign) {
    for (const [key, choice] of Object.entries(choices)) say(choice.firstChild, `${STATES[key]}${counts[key] === null ? "" : ` ${count(counts[key])}`}`);
    if (sign !== shown.sign || Date.now() - shown.at > STALE_MS) await read(sign);
    list.tick();
  }

  function load() { return read(shown.sign).catch((error) => { if (error.name !== "AbortError") toast(error.message, "bad"); }); }

  /** A page of the API may be short while there are more jobs, with a tag above all. */
  async function read(sign) {
    const mine = (turn += 1);
    const jobs = [];
    let cursor = starts.at(-1);
    for (let i = 0; i < AT_ONCE && cursor !== null && jobs.length < PAGE; i += 1) {
      const page = await exactly("GET", `${topicPath(name)}/jobs`, { query: { state, tag: tag.value, limit: PAGE - jobs.length, cursor }, signal });
      if (mine !== turn) return;
      jobs.push(...page.jobs);
      cursor = page.next_cursor ?? null;
    }
    shown = { sign, at: Date.now(), next: cursor };
    draw(jobs);
  }

  function draw(jobs) {
    list.show(jobs, (job) => JSON.stringify([job.$seq, job.deliveries, job.deadline, job.ready_at, job.worker, job.failures]));
    say(none, jobs.length ? "" : shown.next !== null ? "No job was found yet." : tag.value ? `No ${state} job has this tag.` : NONE[state]);
    none.hidden = jobs.length > 0;
    first.hidden = starts.length < 2;
    next.hidden = shown.next === null;
    say(next.firstChild, jobs.length ? "Next page" : "Search further");
    say(told, jobs.length && (shown.next !== null || starts.length > 1) ? `${plural(jobs.length, "job")} from seq ${count(jobs[0].$seq)}` : "");
  }

  function columns() {
    const times = (job) => (job.deliveries === undefined ? "0" : most && state !== "dead" ? `${job.deliveries} of ${most}` : count(job.deliveries));
    return [
      ["Job", (job) => button(count(job.$seq), () => inFull(job), { kind: "small", name: `Show job ${count(job.$seq)}` }), "number"],
      ...(state === "dead" ? [] : [["Priority", (job) => (job.priority ? count(job.priority) : ""), "number wide"]]),
      ...{
        ready: [["Appended", (job) => since(job.$ts), "number wide"]],
        leased: [["Worker", (job) => job.worker, "name"], ["Lease ends", (job) => since(job.deadline), "number"]],
        delayed: [["Ready", (job) => since(job.ready_at), "number"]],
        dead: [["Dead since", (job) => since(job.$ts), "number"]],
      }[state],
      ["Tag", (job) => job.$tag, "tag"],
      ["Deliveries", times, "number"],
      ["Last failure", (job) => reasonOf(job.failures?.at(-1)), "reason"],
      ["Data", (job) => h("span.mono", oneLine(job.data, 120)), "data wide"],
      ["Actions", (job) => h("div.row.near", actions(job).map(([text, act, kind]) => button(text, () => act(job), { kind: `small ${kind ?? ""}`, name: `${text} job ${count(job.$seq)}` })))],
    ];
  }

  function actions(job) {
    const cancel = may("delete") && ["Cancel", remove, "bad"];
    return {
      ready: [cancel],
      leased: [may("write") && ["Extend", extend], may("write") && ["Release", release], may("write") && ["Acknowledge", acknowledge, "bad"], cancel],
      delayed: [may("write") && ["Promote", promote], cancel],
      dead: [may("read", "write", "delete") && ["Retry", retry], may("delete") && ["Delete", removeDead, "bad"]],
    }[state].filter(Boolean);
  }

  async function inFull(job) {
    const acts = actions(job);
    const chosen = await dialog(`${state === "dead" ? "Dead letter" : "Job"} ${count(job.$seq)}`, details(job),
      [["Close", null], ...acts.map(([text, act, kind]) => [text, act, kind])]);
    if (chosen) await chosen(job);
  }

  function details(job) {
    const when = (ms) => h("time", { datetime: iso(ms), title: iso(ms) }, `${moment(ms)}, ${ago(ms)}`);
    const topic = state === "dead" ? dead : name;
    return h("div.stack.job",
      facts([
        ["Record", h("a", { href: topicLink(topic, "live", { seq: job.$seq }) }, `${topic} ${count(job.$seq)}`)],
        [state === "dead" ? "Dead since" : "Appended", when(job.$ts)],
        job.$tag ? ["Tag", job.$tag] : null,
        job.$node ? ["Node", job.$node] : null,
        job.priority ? ["Priority", count(job.priority)] : null,
        job.worker ? ["Worker", job.worker] : null,
        job.deadline ? ["Lease ends", when(job.deadline)] : null,
        job.ready_at ? ["Ready", when(job.ready_at)] : null,
        ["Deliveries", count(job.deliveries ?? 0)],
        job.first_failure ? ["First failure", when(job.first_failure)] : null,
      ]),
      job.failures?.length ? [h("h3", "Last failures"), h("ul.failures", job.failures.map((one) =>
        h("li", h("strong", reasonOf(one)), h("span.soft", ` delivery ${one.delivery}${one.worker ? ` by ${one.worker}` : ""}, ${ago(one.at)}${one.fatal ? ", fatal" : ""}`))))] : null,
      h("h3", "Data"), pretty(job.data, "Data of the job"),
      job.meta ? [h("h3", "Meta"), pretty(job.meta, "Meta of the job")] : null);
  }

  // Operations

  async function settle(asked, verb, unless) {
    try {
      const answer = await asked;
      const done = answer.changed ?? !answer.skipped.length;
      toast(done ? verb : unless, done ? "" : "bad");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      toast(error.code === "job_not_found" ? "The job does not exist any more." : error.message, "bad");
    }
    shown.sign = null;
    await changed().catch((error) => { if (!(error instanceof ApiError) && error.name !== "AbortError") throw error; });
  }

  function operate(job, verb, said, more = {}) {
    return settle(post(`${topicPath(name)}/jobs/${job.$seq}/${verb}`, more), said, "The job has another state now; nothing was changed.");
  }
  function held(job) { return { node: job.worker, seqs: [Number(job.$seq)] }; }
  function extend(job) { return settle(post(`${topicPath(name)}/extend`, { ...held(job), lease_ms: lease }), `Extended by ${duration(lease)}.`, ENDED); }
  function promote(job) { return operate(job, "promote", "The job is ready now."); }
  function retry(job) { return operate(job, "retry", "Moved back into the queue."); }
  async function release(job) {
    if (await sure("Release the job?", `The lease of ${job.worker} on job ${count(job.$seq)} ends, and the job can be claimed again. The worker may still be working on it.`, "Release")) await operate(job, "release", "Released.");
  }
  async function acknowledge(job) {
    if (await sure("Acknowledge the job?", `Job ${count(job.$seq)} counts as done by ${job.worker} and is deleted.`, "Acknowledge")) await settle(post(`${topicPath(name)}/ack`, held(job)), "Acknowledged.", ENDED);
  }
  async function remove(job) {
    const worker = job.worker ? ` ${job.worker} may still be working on it, and cannot acknowledge it.` : "";
    if (await sure("Cancel the job?", `Job ${count(job.$seq)} is deleted.${worker}`, "Cancel the job")) await operate(job, "cancel", "Cancelled.");
  }
  async function removeDead(job) {
    if (await sure("Delete the dead letter?", `Dead letter ${count(job.$seq)} is deleted from ${dead}. It cannot be retried.`, "Delete")) await operate(job, "cancel", "Deleted.", { dead: true });
  }
}

const reasonOf = (failure) => (failure ? failure.reason || (failure.fatal ? "fatal" : "no reason was given") : "");
