// The pipeline: lag, last round, quarantined topics.

import { get } from "../api.js";
import { Trail, spark } from "../charts.js";
import { fill, h } from "../dom.js";
import { ago, bytes, count, duration, plural, rate } from "../format.js";
import { topicLink } from "../links.js";
import { badge, card, empty, facts, failure, figure, table } from "../parts.js";

const LOOK_MS = 1500;
const KINDS = { running: "accent", idle: "good", waiting: "warn", unavailable: "bad" };

export default async function render(context) {
  const figures = { lag: figure("Lag", { hint: "Sealed segments that are not processed" }), age: figure("Oldest unprocessed record"), rounds: figure("Rounds"), records: figure("Records processed"), rows: figure("Rows in the table") };
  const state = badge("…");
  const line = spark("Segment lag", { slots: 90 });
  const trail = new Trail(90);
  const last = h("div");
  const current = h("div");
  const trouble = h("div");
  const out = h("div");
  const list = table("Quarantined topics", [
    { title: "Topic", class: "name", cell: (one) => h("a", { href: topicLink(one.topic) }, one.topic) },
    { title: "Product", cell: (one) => badge(one.product) },
    { title: "Since", class: "number", cell: (one) => ago(one.since_ms) },
    { title: "Attempts", class: "number", cell: (one) => count(one.attempts) },
    { title: "Next attempt", class: "number", cell: (one) => ago(one.retry_at_ms) },
    { title: "Reason", cell: (one) => one.reason },
  ]);
  const body = h("div.stack");
  context.put("Pipeline", h("div.beside", state), body);
  await context.every(LOOK_MS, async () => draw(await get("/v0/pipeline", {}, context.signal)));

  function draw(now) {
    state.textContent = now.state;
    state.className = `badge ${KINDS[now.state] ?? ""}`;
    if (now.state === "off" && !now.run && !now.lag_segments) return fill(body, empty("The pipeline is off", "It writes Parquet files and index files of sealed records. Set TOPICS_PIPELINE=auto to turn it on."));
    if (!body.firstChild) {
      fill(body, h("div.figures", Object.values(figures).map((one) => one.element)), trouble,
        h("div.columns", card("Segment lag", h("div.chart", line.element)), card("Last round", last)), card("Run", current), card("Quarantined topics", out, list.element));
    }
    figures.lag.set(plural(now.lag_segments, "segment"), bytes(now.lag_bytes));
    figures.age.set(now.lag_ms ? duration(now.lag_ms) : "–");
    figures.rounds.set(count(now.rounds), plural(now.segments, "segment"));
    figures.records.set(count(now.records), now.restarts ? `${plural(now.restarts, "restart")}` : "");
    figures.rows.set(now.rows === null ? "–" : count(now.rows), `${count(now.lag_records)} records to go`);
    trail.push(now.lag_segments);
    line.update(trail.values, `Segment lag: now ${count(now.lag_segments)}`);
    fill(trouble, now.error ? failure({ message: now.error }) : now.reason ? failure({ message: now.reason }) : null);
    const run = now.last_run, job = now.run?.job;
    fill(current, !now.run ? "No run yet." : facts([
      ["By", now.run.by], ["Started", ago(now.run.started_ms)], [now.run.ended_ms ? "Ended" : "Last update", ago(now.run.ended_ms ?? now.run.updated_ms)],
      ["Records", `${count(now.run.records)}, ${bytes(now.run.bytes)}`],
      ...(job ? [["Job", job.about], ["Tasks", `${count(job.tasks_done)} of ${count(job.tasks)}, ${bytes(job.bytes_done)} of ${bytes(job.bytes)}`]] : []),
      ...(now.run.error ? [["Error", now.run.error]] : [])]));
    fill(last, run === null ? "No round yet." : facts([
      ["Started", ago(run.started_ms)], ["Took", duration(run.took_ms)], ["Records", `${count(run.records)}, ${rate(run.records_per_s)}`],
      ["Segments", `${count(run.segments)}, ${bytes(run.bytes)}`]]));
    fill(out, now.quarantined.length ? null : badge("none", "good"));
    list.element.hidden = !now.quarantined.length;
    list.show(now.quarantined);
  }
}
