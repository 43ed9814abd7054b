import { TopicsError } from "./errors.js";
import type { CallOptions, Http } from "./http.js";
import { Backoff } from "./retry.js";
import type { Diff, DiffFields, Tombstone, TopicRecord } from "./types.js";

export interface FollowOptions extends CallOptions, Omit<DiffFields, "from_seq" | "epoch" | "since_ts" | "last"> {
  /** The cursor to begin behind. */
  from_seq?: number;
  /** The epoch of the topic that `from_seq` belongs to, so that a recreated topic is noticed. */
  epoch?: number;
  /** How long a request waits for new records; 0 ends the iteration at the end of the topic. */
  wait_ms?: number;
  /** How long to retry while the server is away; the default is without end. */
  deadlineMs?: number;
}

export type FollowItem<T> = { type: "record"; record: TopicRecord<T> } | { type: "tombstone"; tombstone: Tombstone };

const WAIT_MS = 20_000;

/** Everything behind a cursor, in order; waits for new records. */
export class Follower<T = unknown> implements AsyncIterable<FollowItem<T>> {
  /** Behind the last item that was handed out. Store it with your result and pass it as `from_seq` the next time. */
  cursor: number;
  /** The epoch of the topic; store it with the cursor. */
  epoch: number | undefined;

  constructor(
    private readonly http: Http,
    private readonly path: string,
    private readonly options: FollowOptions,
    /** Called when everything that was read has been handed out, before the next read and at the end. */
    private readonly onDrained?: () => Promise<void>,
  ) {
    this.cursor = options.from_seq ?? 0;
    this.epoch = options.epoch;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FollowItem<T>> {
    const { signal, deadlineMs = Infinity, wait_ms = WAIT_MS, from_seq: _, ...fields } = this.options;
    const backoff = new Backoff({ ...this.http.retry, deadlineMs }, signal);
    for (;;) {
      let answer: Diff<T>;
      const body = { ...fields, wait_ms, from_seq: this.cursor, epoch: this.epoch };
      try {
        answer = await this.http.call<Diff<T>>("POST", this.path, { body, waitMs: wait_ms, ...(signal && { signal }) });
      } catch (error) {
        if (!(error instanceof TopicsError)) throw error;
        await backoff.wait(error);
        continue;
      }
      backoff.succeeded();
      this.epoch = answer.epoch;
      if (answer.tombstone) {
        // A recreated topic starts over: its seqs may be below the cursor.
        this.cursor = answer.tombstone.reason === "recreated" ? 0 : answer.tombstone.gap_to;
        yield { type: "tombstone", tombstone: answer.tombstone };
      }
      for (const record of answer.records) {
        this.cursor = record.$seq;
        yield { type: "record", record };
      }
      this.cursor = answer.next_from_seq;
      await this.onDrained?.();
      if (wait_ms === 0 && answer.caught_up) return;
    }
  }
}
