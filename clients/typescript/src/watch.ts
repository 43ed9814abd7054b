import { ApiError, ConnectionError, TopicsError, hasCode } from "./errors.js";
import type { CallOptions, Http } from "./http.js";
import { Positions } from "./positions.js";
import { Backoff } from "./retry.js";
import { EventParser, readEvents, type ServerSentEvent } from "./sse.js";
import type { LiveItem, SubscribeFields, Topics } from "./types.js";
import type { components } from "./openapi.js";

export interface WatchOptions extends CallOptions, SubscribeFields {
  heartbeat_ms?: number;
  /** `strong` delivers a record only when it is on disk. */
  consistency?: "eventual" | "strong";
  /** How long to retry while the server is away; the default is without end. */
  deadlineMs?: number;
}

type Session = components["schemas"]["WatchAnswer"];

const HEARTBEAT_MS = 15_000;
const HEARTBEATS_MISSED_MAX = 2.5;

/** The records of several topics as they are appended, over one event stream. Reconnects without loss or repetition. */
export class Watcher<T = unknown> implements AsyncIterable<LiveItem<T>> {
  readonly #positions = new Positions();

  constructor(
    private readonly http: Http,
    topics: Topics,
    private readonly options: WatchOptions,
  ) {
    this.#positions.begin(topics);
  }

  /** Behind the last item that was handed out, by topic. Pass it as `topics` to continue later. */
  get cursors(): Readonly<Record<string, number>> {
    return this.#positions.cursors;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<LiveItem<T>> {
    const { signal, deadlineMs = Infinity } = this.options;
    const backoff = new Backoff({ ...this.http.retry, deadlineMs }, signal);
    let session: Session | undefined;
    let opened = false;
    let lastId = "";
    while (this.#positions.topics.length > 0) {
      const parser = new EventParser();
      try {
        if (session === undefined) {
          const known = new Set(this.#positions.topics);
          session = await this.#open(opened);
          opened = true;
          lastId = "";
          for (const topic of known) {
            if (topic in session.topics) continue;
            // It was deleted while no connection was there to report it.
            this.#positions.end(topic);
            yield { type: "topic-deleted", topic, head_seq: 0 };
          }
          if (this.#positions.topics.length === 0) return;
        }
        const headers: Record<string, string> = lastId === "" ? {} : { "last-event-id": lastId };
        const response = await this.http.open("GET", session.stream_url, { accept: "text/event-stream", headers, ...(signal && { signal }) });
        const silenceMs = (this.options.heartbeat_ms ?? HEARTBEAT_MS) * HEARTBEATS_MISSED_MAX;
        for await (const event of this.#events(response, parser, silenceMs)) {
          backoff.succeeded();
          yield* this.#items(event);
        }
        if (this.#positions.topics.length === 0) return;
        throw new ConnectionError("the event stream ended", true);
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        lastId = parser.lastId || lastId;
        // Without an id the server would continue behind what it sent, and that may never have arrived.
        if (lastId === "") session = undefined;
        if (hasCode(error, "not_found") && session !== undefined) {
          session = undefined; // The session expired, or the server was restarted: begin another one at the cursors.
          continue;
        }
        if (!(error instanceof TopicsError)) throw error;
        await backoff.wait(error);
      }
    }
  }

  async #open(again: boolean): Promise<Session> {
    const { signal, deadlineMs: _, ...fields } = this.options;
    const topics = Object.fromEntries(this.#positions.topics.map((name) => [name, this.#positions.start(name)]));
    const session = await this.http.call<Session>("POST", "/v0/watch", {
      body: { ...fields, topics },
      query: { lenient: again ? true : undefined },
      ...(signal && { signal }),
    });
    for (const [topic, place] of Object.entries(session.topics)) this.#positions.placed(topic, place.from_seq, place.epoch);
    return session;
  }

  async *#events(response: Response, parser: EventParser, silenceMs: number): AsyncGenerator<ServerSentEvent> {
    try {
      yield* readEvents(response, parser, silenceMs);
    } catch (error) {
      if (error instanceof TopicsError || this.http.closed.signal.aborted) throw this.http.closed.signal.reason ?? error;
      throw new ConnectionError(`the event stream broke: ${(error as Error).message}`, true, { cause: error });
    }
  }

  *#items(event: ServerSentEvent): Generator<LiveItem<T>> {
    const data = JSON.parse(event.data);
    switch (event.event) {
      case "record":
        yield* this.#positions.records<T>(data.topic, data.records, data.to_seq);
        break;
      case "tombstone":
        yield* this.#positions.tombstone(data.topic, data);
        break;
      case "caught-up":
        yield { type: "caught-up", topic: data.topic, head_seq: data.head_seq };
        break;
      case "topic-deleted":
        this.#positions.end(data.topic);
        yield { type: "topic-deleted", topic: data.topic, head_seq: data.head_seq };
        break;
      case "error":
        yield* this.#failed(data);
        break;
    }
  }

  *#failed(data: { code: number; error: string; retry_after_ms?: number; topics?: string[] }): Generator<LiveItem<T>> {
    if (data.code === 429) return; // Advice: news are late, and the stream goes on.
    if (data.code !== 500 || data.topics === undefined) {
      throw new ApiError(503, "stream_ended", data.error, {}, data.retry_after_ms);
    }
    for (const topic of data.topics) {
      this.#positions.end(topic);
      yield { type: "topic-failed", topic, code: "corrupt_segment", message: data.error };
    }
  }
}
