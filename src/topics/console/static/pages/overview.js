// The overview: rates, pressure, memory, problems, and charts since the start of the server.

import { get } from "../api.js";
import { Rate, ratesOf, timeChart } from "../charts.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration, plural, rate, short } from "../format.js";
import { card, empty, figure, note, select } from "../parts.js";

const LOOK_MS = 1000;
const RANGES = { 600: "10 minutes", 3600: "1 hour", 86400: "1 day" };
const CHARTS = [
  ["topics_http_requests_total", "Requests per second", short], ["topics_wal_frames_total", "Log frames per second", short],
  ["topics_http_sent_bytes_total", "Bytes sent per second", bytes], ["topics_http_received_bytes_total", "Bytes received per second", bytes],
  ["topics_commit_ms", "Commit latency", duration], ["topics_pressure", "Pressure", (one) => one.toFixed(2)],
  ["topics_records_live", "Live records", short], ["topics_dead_letters_waiting", "Dead letters", short],
];

export default async function render(context) {
  const figures = {
    appended: figure("Logged", { hint: "Frames written to the log per second" }), asked: figure("Requests", { hint: "HTTP requests per second" }),
    topics: figure("Topics"), records: figure("Live records"), pressure: figure("Pressure", { hint: "Load of the server, 0 to 1" }),
    commit: figure("Commit", { hint: "Duration of the latest commits" }), memory: figure("Memory", { hint: "Records that are not in a segment yet" }),
    watchers: figure("Following", { hint: "Open event streams and WebSockets" }),
  };
  const attention = h("ul.attention");
  const first = h("div");
  const range = select(RANGES, Object.hasOwn(RANGES, context.query.get("range")) ? context.query.get("range") : "600", { "aria-label": "Time range", onchange: () => { context.note({ range: range.value }); history.load().catch(() => {}); } });
  const charts = CHARTS.map(([name, title, shown]) => ({ name, chart: timeChart(title, shown, shown === bytes), title }));
  const history = new History(context, charts, () => Number(range.value));
  context.put("Overview",
    h("div.figures", Object.values(figures).map((one) => one.element)),
    first,
    card("Needs attention", attention),
    h("div.row", h("h2", "Charts"), h("span.grow"), range),
    h("div.columns.charts", charts.map((one) => card(one.title, one.chart.element))));
  const rates = { requests: new Rate(), frames: new Rate() };
  await context.every(LOOK_MS, async () => {
    const [now, pipeline] = await Promise.all([
      get("/v0/metrics", { topics: false }, context.signal, { accept: "application/json" }), get("/v0/pipeline", {}, context.signal), history.look(),
    ]);
    draw(now, pipeline);
  });

  function draw(now, pipeline) {
    const requests = rates.requests.look(now.topics_http_requests_total);
    const frames = rates.frames.look(now.topics_wal_frames_total);
    figures.asked.set(requests === null ? "…" : rate(requests), plural(now.topics_http_connections, "connection"));
    figures.appended.set(frames === null ? "…" : rate(frames), `${bytes(now.topics_wal_bytes_written_total)} so far`);
    figures.topics.set(count(now.topics_topics), [plural(now.topics_queue_topics, "queue"), ", ", plural(now.topics_routers, "router")]);
    figures.records.set(short(now.topics_records_live), bytes(now.topics_bytes_live));
    figures.pressure.set(now.topics_pressure.toFixed(2), LEVELS[now.topics_throttle_level]);
    figures.commit.set(duration(now.topics_commit_ms), `event loop ${duration(now.topics_loop_lag_ms)} late`);
    figures.memory.set(bytes(now.topics_tail_bytes), "not in segments yet");
    figures.watchers.set(count(now.topics_sse_connections), `up ${duration(now.topics_uptime_ms)}`);
    const warnings = concerns(now, pipeline);
    fill(attention, warnings.length ? warnings.map(([kind, text]) => h("li", { class: kind }, text)) : h("li.good", "OK: nothing needs attention."));
    fill(first, now.topics_topics === 0 ? welcome() : null);
  }
}

/** The history of the server, kept up to date by its newest points. */
class History {
  constructor(context, charts, span) {
    this.context = context;
    this.charts = charts;
    this.span = span;
    this.kept = null;
  }

  get step() { return this.span() > 3600 ? "1m" : "1s"; }
  get most() { return this.step === "1m" ? 1440 : this.span(); }
  ask(points) { return get("/v0/metrics/history", { step: this.step, points }, this.context.signal); }

  async load() {
    this.kept = await this.ask(this.most);
    this.draw();
  }

  async look() {
    if (this.kept === null) return this.load();
    const fresh = await this.ask(5);
    const known = Object.values(fresh.series)[0].length;
    const ahead = Math.round((fresh.end_ms - this.kept.end_ms) / fresh.step_ms);
    // After a pause or a restart the points do not join.
    if (fresh.step_ms !== this.kept.step_ms || ahead < 0 || ahead >= known) return this.load();
    for (const [name, values] of Object.entries(fresh.series)) {
      const all = this.kept.series[name];
      all.splice(Math.max(0, all.length - known + ahead), all.length, ...values);
      all.splice(0, all.length - this.most);
    }
    this.kept.end_ms = fresh.end_ms;
    this.draw();
  }

  draw() {
    const { step_ms: step, end_ms: end, series } = this.kept;
    for (const { name, chart } of this.charts) {
      chart.update({ values: name.endsWith("_total") ? ratesOf(series[name], step) : series[name], step_ms: step, end_ms: end }, this.span() * 1000);
    }
  }
}

const LEVELS = ["OK", "coalescing deliveries", "longer commit delays", "deferring low priorities", "refusing appends"];

/** The problems of the server. */
function concerns(now, pipeline) {
  const found = [];
  const when = (is, kind, text) => { if (is) found.push([kind, text]); };
  const link = (href, text) => h("a", { href }, text);
  when(now.topics_wal_read_only > 0, "bad", `${plural(now.topics_wal_read_only, "log shard")} ${now.topics_wal_read_only === 1 ? "is" : "are"} read-only. Read the log of the server.`);
  when(now.topics_disk_full > 0, "bad", "The disk is full. Only requests that free space are accepted.");
  when(now.topics_standby_lag_ms >= 0, "warn", link("#/settings", `This server is a standby: it serves reads that are up to ${duration(now.topics_standby_lag_ms)} old.`));
  when(now.topics_seal_failures > 0, "bad", `Writing a segment failed ${plural(now.topics_seal_failures, "time")} in a row.`);
  when(now.topics_checkpoint_failures > 0, "bad", `A checkpoint failed ${plural(now.topics_checkpoint_failures, "time")} in a row.`);
  when(now.topics_cold_store_paused > 0, "warn", "The object store does not answer. Old records cannot be read until it does.");
  when(now.topics_throttle_level >= 3, "warn", `Pressure is high: ${LEVELS[now.topics_throttle_level]}.`);
  when(now.topics_routers_blocked > 0, "warn", link("#/routers", `${plural(now.topics_routers_blocked, "router")} ${now.topics_routers_blocked === 1 ? "is" : "are"} blocked.`));
  // The server compares their age with the setting dead_letter_attention_ms.
  when(now.topics_dead_letters_overdue > 0, "warn", link("#/queues", `${plural(now.topics_dead_letters_waiting, "dead letter")} ${now.topics_dead_letters_waiting === 1 ? "waits" : "wait"} in the dead-letter topics of queues, the oldest for ${duration(now.topics_dead_letters_oldest_ms)}.`));
  when(now.topics_schedules_failing > 0, "warn", link("#/schedules", `${plural(now.topics_schedules_failing, "schedule")} cannot append ${now.topics_schedules_failing === 1 ? "its" : "their"} jobs.`));
  when(now.topics_dead_letters_refused_total > 0, "warn", link("#/queues", `${plural(now.topics_dead_letters_refused_total, "attempt")} to move a job to its dead-letter topic failed.`));
  when(now.topics_search_processes_lost_total > 0, "warn", `The search process ended ${plural(now.topics_search_processes_lost_total, "time")}. The next search restarts it.`);
  when(pipeline.error !== null, "bad", link("#/pipeline", "The last round of the pipeline failed."));
  when(pipeline.quarantined.length > 0, "warn", link("#/pipeline", `The pipeline skips ${plural(pipeline.quarantined.length, "topic")}.`));
  return found;
}

function welcome() {
  return empty("No topics yet", note("Append a record to create a topic:"),
    h("pre.text", `curl ${location.origin}/v0/topics/orders -H 'content-type: application/json' \\\n  -d '{"records": [{"data": {"order": 1}}]}'`));
}
