// Follows a topic from a seq on, over whatever happens to connections, sessions, tokens and the server.
//
// The position is ours: the last seq that was given on. So pausing is closing, going on is opening again from there,
// and nothing is missed or shown twice. A stream whose name topics cannot have is followed by requests that wait.

import { ApiError, at, dropToken, exact, exactly, isTopicName, post, token, topicPath } from "./api.js";

const LIMIT = 1000;
const BYTES = 1 << 20;
const AGAIN_MS = 700;
const WAIT_MS = 20_000;

/** `on` has `records(list)`, `gap(tombstone)`, `gone()` and `state(word)`: `live`, `connecting`. Gives what stops it. */
export function follow(topic, fromSeq, epoch, on) {
  const stopped = new AbortController();
  const position = { seq: fromSeq, epoch };
  (isTopicName(topic) ? watch : poll)(topic, position, on, stopped.signal);
  return () => stopped.abort();
}

function moved(position, seq, on, records) {
  position.seq = seq;
  if (records?.length) on.records(records);
}

async function watch(topic, position, on, signal) {
  on.state("connecting");
  let made;
  try {
    const from = { from_seq: position.seq, epoch: position.epoch ?? undefined };
    made = await post("/v0/watch", { topics: { [topic]: from }, include_tags: true, limit: LIMIT, max_batch_bytes: BYTES }, { signal });
    position.epoch = made.topics[topic].epoch;
    const said = await token();
    if (signal.aborted) return;
    listen(topic, at(made.stream_url) + (said ? `?token=${encodeURIComponent(said)}` : ""), position, on, signal);
  } catch (error) {
    again(error, () => watch(topic, position, on, signal), on, signal);
  }
}

function again(error, next, on, signal) {
  if (signal.aborted || error.name === "AbortError") return;
  if (error instanceof ApiError && error.status === 404) return on.gone();
  on.state("connecting");
  if (error instanceof ApiError && error.status === 401) dropToken();
  if (!(error instanceof ApiError)) throw error;
  setTimeout(() => { if (!signal.aborted) next(); }, AGAIN_MS);
}

function listen(topic, url, position, on, signal) {
  const source = new EventSource(url);
  const when = (name, handle) => source.addEventListener(name, (event) => { if (!signal.aborted && event.data) handle(exact(event.data)); });
  signal.addEventListener("abort", () => source.close());
  source.addEventListener("open", () => { if (!signal.aborted) on.state("live"); });
  when("record", (batch) => moved(position, batch.to_seq, on, batch.records));
  when("tombstone", (gap) => { moved(position, Math.max(position.seq, gap.gap_to), on); if (gap.reason === "recreated") position.seq = 0; on.gap(gap); });
  when("topic-deleted", () => { source.close(); on.gone(); });
  source.onerror = () => {
    if (signal.aborted) return;
    on.state("connecting");
    if (source.readyState === EventSource.CLOSED) {
      // The session is gone, as after a restart, or its token is over: another one, from where this one was.
      dropToken();
      setTimeout(() => { if (!signal.aborted) watch(topic, position, on, signal); }, AGAIN_MS);
    }
  };
}

async function poll(topic, position, on, signal) {
  on.state("connecting");
  try {
    while (!signal.aborted) {
      const body = { from_seq: position.seq, epoch: position.epoch ?? undefined, include_tags: true, limit: LIMIT, wait_ms: on.waited ? WAIT_MS : 0 };
      const page = await exactly("POST", `${topicPath(topic)}/diff`, { body, query: { streams: true }, signal });
      on.waited = true;
      on.state("live");
      position.epoch = page.epoch;
      if (page.tombstone) on.gap(page.tombstone);
      moved(position, page.next_from_seq, on, page.records);
    }
  } catch (error) {
    on.waited = false;
    again(error, () => poll(topic, position, on, signal), on, signal);
  }
}
