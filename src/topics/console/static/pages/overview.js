// How the server is, at one look.

import { get } from "../api.js";
import { Rate, Trail, spark } from "../charts.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration, plural, rate, short } from "../format.js";
import { card, empty, figure, note } from "../parts.js";

const LOOK_MS = 1000;

export default async function render(context) {
  const figures = {
    appended: figure("Logged", { hint: "Frames written to the log in a second" }), asked: figure("Requests", { hint: "HTTP requests in a second" }),
    topics: figure("Topics"), records: figure("Live records"), pressure: figure("Pressure", { hint: "How hard the server is pressed, 0 to 1" }),
    commit: figure("Commit", { hint: "How long commits took at the last look" }), memory: figure("Memory", { hint: "Records that are not sealed yet" }),
    watchers: figure("Following", { hint: "Open event streams and WebSockets" }),
  };
  const charts = {
    requests: chart("Requests a second"), frames: chart("Frames logged a second"), sent: chart("Bytes sent a second", bytes),
    commit: chart("Commit latency", duration),
  };
  const attention = h("ul.attention");
  const first = h("div");
  context.put("Overview",
    h("div.figures", Object.values(figures).map((one) => one.element)),
    first,
    card("Needs attention", attention),
    h("div.columns.charts", Object.values(charts).map((one) => one.element)));
  const rates = { requests: new Rate(), frames: new Rate(), sent: new Rate() };
  await context.every(LOOK_MS, async () => {
    const [now, pipeline] = await Promise.all([
      get("/v0/metrics", { topics: false }, context.signal, { accept: "application/json" }), get("/v0/pipeline", {}, context.signal),
    ]);
    draw(now, pipeline);
  });

  function draw(now, pipeline) {
    const requests = charts.requests.push(rates.requests.look(now.topics_http_requests_total));
    const frames = charts.frames.push(rates.frames.look(now.topics_wal_frames_total));
    charts.sent.push(rates.sent.look(now.topics_http_sent_bytes_total));
    charts.commit.push(now.topics_commit_ms);
    figures.asked.set(requests === null ? "…" : rate(requests), plural(now.topics_http_connections, "connection"));
    figures.appended.set(frames === null ? "…" : rate(frames), `${bytes(now.topics_wal_bytes_written_total)} so far`);
    figures.topics.set(count(now.topics_topics), [plural(now.topics_queue_topics, "queue"), ", ", plural(now.topics_routers, "router")]);
    figures.records.set(short(now.topics_records_live), bytes(now.topics_bytes_live));
    figures.pressure.set(now.topics_pressure.toFixed(2), LEVELS[now.topics_throttle_level]);
    figures.commit.set(duration(now.topics_commit_ms), `loop ${duration(now.topics_loop_lag_ms)} late`);
    figures.memory.set(bytes(now.topics_tail_bytes), "not sealed yet");
    figures.watchers.set(count(now.topics_sse_connections), `up ${duration(now.topics_uptime_ms)}`);
    const warnings = concerns(now, pipeline);
    fill(attention, warnings.length ? warnings.map(([kind, text]) => h("li", { class: kind }, text)) : h("li.good", "OK: nothing needs attention."));
    fill(first, now.topics_topics === 0 ? welcome() : null);
  }
}

const LEVELS = ["OK", "coalescing deliveries", "wider commits", "deferring low priorities", "refusing appends"];

function chart(title, shown = short) {
  const trail = new Trail(90);
  const line = spark(title, { slots: 90 });
  const now = h("span");
  const top = h("span");
  return {
    element: card(title, h("div.chart", line.element), h("div.chart-foot", top, now)),
    push(value) {
      if (value !== null) trail.push(value);
      const highest = Math.max(0, ...trail.values);
      const last = trail.values.at(-1) ?? 0;
      line.update(trail.values, `${title}: now ${shown(last)}, at most ${shown(highest)}`);
      now.textContent = `now ${shown(last)}`;
      top.textContent = `most ${shown(highest)}`;
      return value;
    },
  };
}

/** What somebody should look at, in the words of the metrics that tell it. */
function concerns(now, pipeline) {
  const found = [];
  const when = (is, kind, text) => { if (is) found.push([kind, text]); };
  when(now.topics_wal_read_only > 0, "bad", `${plural(now.topics_wal_read_only, "shard")} of the log ${now.topics_wal_read_only === 1 ? "takes" : "take"} no writes. Look into the server's log.`);
  when(now.topics_disk_full > 0, "bad", "The disk is full. Only what makes room is taken.");
  when(now.topics_seal_failures > 0, "bad", `Sealing failed ${count(now.topics_seal_failures)} times in a row.`);
  when(now.topics_checkpoint_failures > 0, "bad", `Checkpoints failed ${count(now.topics_checkpoint_failures)} times in a row.`);
  when(now.topics_cold_store_paused > 0, "warn", "The object store does not answer; old records cannot be read for now.");
  when(now.topics_throttle_level >= 3, "warn", `Pressure is high: ${LEVELS[now.topics_throttle_level]}.`);
  when(now.topics_routers_blocked > 0, "warn", h("a", { href: "#/routers" }, `${plural(now.topics_routers_blocked, "router")} held up.`));
  when(now.topics_dead_letters_refused_total > 0, "warn", h("a", { href: "#/queues" }, `${plural(now.topics_dead_letters_refused_total, "attempt")} to move a job to its dead letter topic failed.`));
  when(now.topics_search_processes_lost_total > 0, "warn", `The search process ended ${count(now.topics_search_processes_lost_total)} times; the next search restarts it.`);
  when(pipeline.error !== null, "bad", h("a", { href: "#/pipeline" }, "The last round of the pipeline failed."));
  when(pipeline.quarantined.length > 0, "warn", h("a", { href: "#/pipeline" }, `The pipeline leaves ${plural(pipeline.quarantined.length, "topic")} out.`));
  return found;
}

function welcome() {
  return empty("An empty server", note("Append a first record, and the topic is there:"),
    h("pre.text", `curl ${location.origin}/v0/topics/orders -H 'content-type: application/json' \\\n  -d '{"records": [{"data": {"order": 1}}]}'`));
}
