import { TopicsError, hasCode } from "./errors.js";
import { Follower, type FollowItem, type FollowOptions } from "./follow.js";
import type { Http } from "./http.js";
import { Backoff } from "./retry.js";
import type { ConsumerCommitted, ConsumerPut, ConsumerStart } from "./types.js";

export interface ConsumerOptions extends Omit<FollowOptions, "from_seq" | "epoch">, ConsumerStart {
  /** After how many items the loop commits; it also commits when it waits for more. 0 leaves commits to `commit`. */
  commitEvery?: number;
}

const COMMIT_EVERY = 1_000;
const LIMIT = 1_000;

/**
 * Everything behind a cursor that the server stores under a name. An item counts as processed when the next one is
 * requested: leaving the loop early commits the items before the current one, and `commit` includes it.
 */
export class Consumer<T = unknown> implements AsyncIterable<FollowItem<T>> {
  #follower: Follower<T> | undefined;
  #committed = -1;
  #committedEpoch: number | undefined;
  #processed = 0;
  #handedOut = 0;

  constructor(
    private readonly http: Http,
    private readonly topicPath: string,
    private readonly name: string,
    private readonly options: ConsumerOptions,
  ) {}

  /** Behind the last item that was handed out: what `commit` commits. -1 before the loop has begun. */
  get cursor(): number {
    return this.#follower?.cursor ?? -1;
  }

  /** The last cursor that this loop committed, or began with; -1 before it has begun. */
  get committed(): number {
    return this.#committed;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FollowItem<T>> {
    const { commitEvery: _, from_seq, since_ts, last, ...read } = this.options;
    const start = { from_seq, since_ts, last };
    const begun = await this.#patiently<ConsumerPut>("PUT", "", start, read.signal);
    this.#committed = this.#processed = begun.seq;
    this.#committedEpoch = begun.epoch;
    const reads = { limit: LIMIT, ...read, from_seq: begun.seq, epoch: begun.epoch };
    const follower = (this.#follower = new Follower<T>(this.http, `${this.topicPath}/diff`, reads, () => this.#advance(true)));
    let failure: { error: unknown } | undefined;
    try {
      for await (const item of follower) {
        this.#handedOut += 1;
        yield item;
        await this.#advance(false);
      }
    } catch (error) {
      failure = { error };
      throw error;
    } finally {
      if (this.#isDue() && !this.http.closed.signal.aborted) {
        // Not under the caller's signal: it ends the loop, not the record of what the loop has done.
        const commit = this.#commit(this.#processed, undefined, this.http.retry.deadlineMs);
        await commit.catch((error: unknown) => {
          if (failure === undefined) throw error;
        });
      }
    }
  }

  /** Commits everything that was handed out, or everything up to `seq`. */
  async commit(seq: number = this.cursor): Promise<void> {
    if (this.#follower === undefined) return;
    await this.#commit(seq, this.options.signal);
    this.#processed = Math.max(this.#processed, seq);
  }

  /** Everything that was handed out is processed: commits it when a batch is complete. */
  async #advance(waiting: boolean): Promise<void> {
    this.#processed = this.cursor;
    const { commitEvery = COMMIT_EVERY, signal } = this.options;
    if (this.#isDue() && (waiting || this.#handedOut >= commitEvery)) await this.#commit(this.#processed, signal);
  }

  #isDue(): boolean {
    if (this.options.commitEvery === 0 || this.#follower === undefined) return false;
    return this.#processed !== this.#committed || this.#follower.epoch !== this.#committedEpoch;
  }

  async #commit(seq: number, signal: AbortSignal | undefined, deadlineMs?: number): Promise<void> {
    const epoch = this.#follower?.epoch;
    const commit = () => this.#patiently<ConsumerCommitted>("POST", "/commit", { seq, epoch }, signal, deadlineMs);
    try {
      await commit().catch(async (error: unknown) => {
        if (!hasCode(error, "consumer_not_found")) throw error;
        // It went with its topic, or was deleted.
        await this.#patiently<ConsumerPut>("PUT", "", {}, signal, deadlineMs);
        await commit();
      });
    } catch (error) {
      // The next read reports it as a tombstone and continues in the new topic.
      if (!hasCode(error, "topic_recreated")) throw error;
    }
    this.#committed = seq;
    this.#committedEpoch = epoch;
    this.#handedOut = 0;
  }

  /** Sends a request until it is answered, as long as the loop waits for an absent server. */
  async #patiently<R>(method: string, call: string, body: object, signal: AbortSignal | undefined, deadlineMs?: number): Promise<R> {
    const backoff = new Backoff({ ...this.http.retry, deadlineMs: deadlineMs ?? this.options.deadlineMs ?? Infinity }, signal);
    const path = `${this.topicPath}/consumers/${encodeURIComponent(this.name)}${call}`;
    for (;;) {
      try {
        return await this.http.call<R>(method, path, { body, ...(signal && { signal }) });
      } catch (error) {
        if (!(error instanceof TopicsError)) throw error;
        await backoff.wait(error);
      }
    }
  }
}
