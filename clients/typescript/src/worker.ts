import { ApiError, TopicsError, hasCode } from "./errors.js";
import type { CallOptions } from "./http.js";
import type { TopicsClient } from "./client.js";
import { Backoff } from "./retry.js";
import type { Job } from "./types.js";

export interface WorkerOptions extends CallOptions {
  /** The worker's name; no two workers may share one. The default is random. */
  node?: string;
  /** How many jobs are handled at once. */
  concurrency?: number;
  /** How long the jobs of a worker that died stay out of reach. Leases are extended while a handler runs. */
  lease_ms?: number;
  /** How long an idle worker waits before it looks for jobs that others gave back. */
  idleMs?: number;
  /** How long a failed job is held back: doubled with each delivery, less a random part. */
  retryMinMs?: number;
  retryMaxMs?: number;
  /** Called for every error of a handler and for answers that could not be sent. */
  onError?: (error: unknown, job?: Job) => void;
}

export interface JobContext {
  /** Aborted when the lease was lost: another worker may have the job. */
  signal: AbortSignal;
}

export type JobHandler<T> = (job: Job<T>, context: JobContext) => unknown;

/** Thrown by a handler to give its job back for a chosen time. */
export class RetryJob extends TopicsError {
  override name = "RetryJob";

  constructor(readonly delayMs = 0) {
    super(`retry in ${delayMs} ms`);
  }
}

/** Thrown by a handler: the job is not tried again, but moves to the dead-letter topic now. */
export class FailJob extends TopicsError {
  override name = "FailJob";
}

const REASON_BYTES_MAX = 1024;

/** The name and the message of an error, no longer than the server takes. */
function reasonOf(failure: unknown): string {
  if (failure instanceof RetryJob) return "";
  const text = failure instanceof Error ? `${failure.name}: ${failure.message}` : String(failure);
  return new TextDecoder().decode(new TextEncoder().encode(text).slice(0, REASON_BYTES_MAX)).replace(/\uFFFD+$/, "");
}

interface Held<T> {
  job: Job<T>;
  lost: AbortController;
  done: Promise<void>;
}

const LEASE_MS = 30_000;

/** Claims jobs of a queue, calls a handler with each and acknowledges it; gives it back when the handler throws. */
export class Worker<T = unknown> {
  readonly node: string;
  readonly #held = new Map<number, Held<T>>();
  readonly #stopped = new AbortController();
  readonly #leaseMs: number;
  #room: (() => void) | undefined;
  #cursor: number | undefined;

  constructor(
    private readonly client: TopicsClient,
    private readonly topic: string,
    private readonly handler: JobHandler<T>,
    private readonly options: WorkerOptions,
  ) {
    this.node = options.node ?? `worker-${crypto.randomUUID()}`;
    this.#leaseMs = options.lease_ms ?? LEASE_MS;
    options.signal?.addEventListener("abort", () => this.stop(), { once: true });
  }

  /** Works until `stop` is called or the queue is gone; resolves when every job that was begun has ended. */
  async run(): Promise<void> {
    if (this.options.signal?.aborted) this.stop();
    const extending = setInterval(() => void this.#extend(), this.#leaseMs / 3);
    try {
      await this.#loop();
    } finally {
      await Promise.all([...this.#held.values()].map((one) => one.done));
      clearInterval(extending);
    }
  }

  /** Claims no more jobs; `run` resolves when those under way have ended. */
  stop(): void {
    this.#stopped.abort(new TopicsError("the worker was stopped"));
    this.#room?.();
  }

  async #loop(): Promise<void> {
    const backoff = new Backoff({ ...this.client.http.retry, deadlineMs: Infinity }, this.#stopped.signal);
    while (!this.#stopped.signal.aborted) {
      const free = (this.options.concurrency ?? 1) - this.#held.size;
      if (free <= 0) {
        await new Promise<void>((resolve) => (this.#room = resolve));
        continue;
      }
      try {
        const claimed = await this.client.claim<T>(this.topic, this.node, { max: free, lease_ms: this.#leaseMs });
        for (const job of claimed.claimed) this.#begin(job);
        if (claimed.claimed.length === 0) await this.#idle();
        else this.#cursor = undefined;
        backoff.succeeded();
      } catch (error) {
        if (this.#stopped.signal.aborted) return;
        if (hasCode(error, "topic_not_found") || hasCode(error, "not_a_queue")) throw error;
        await backoff.wait(error).catch((last: unknown) => {
          if (!this.#stopped.signal.aborted) throw last;
        });
      }
    }
  }

  /** Waits for the next append, or a while for jobs that others give back. */
  async #idle(): Promise<void> {
    const signal = this.#stopped.signal;
    if (this.#cursor === undefined) {
      // The end of the log is noted before one more look, so that no append falls between.
      this.#cursor = (await this.client.getTopic(this.topic, { touch: false })).head_seq;
      return;
    }
    const found = await this.client.diff(this.topic, { from_seq: this.#cursor, limit: 1, include_meta: false, wait_ms: this.options.idleMs ?? 1000, signal });
    this.#cursor = found.head_seq;
  }

  #begin(job: Job<T>): void {
    const before = this.#held.get(job.$seq);
    if (before !== undefined) {
      before.job = job; // It was lost and came back: the first run goes on under the new lease.
      return;
    }
    const held: Held<T> = { job, lost: new AbortController(), done: Promise.resolve() };
    this.#held.set(job.$seq, held);
    held.done = this.#handle(held).finally(() => {
      this.#held.delete(job.$seq);
      this.#room?.();
    });
  }

  async #handle(held: Held<T>): Promise<void> {
    let failure: unknown;
    let failed = false;
    try {
      await this.handler(held.job, { signal: held.lost.signal });
    } catch (error) {
      failed = true;
      failure = error;
      if (!(error instanceof RetryJob)) this.#report(error, held.job);
    }
    const { $seq, lease_id } = held.job;
    try {
      const reason = failed ? reasonOf(failure) : "";
      const fatal = failure instanceof FailJob;
      if (failed) await this.client.nack(this.topic, this.node, [$seq], { lease_ids: [lease_id], delay_ms: fatal ? 0 : this.#delay(failure, held.job), ...(reason && { reason }), ...(fatal && { fatal }) });
      else await this.client.ack(this.topic, this.node, [$seq], { lease_ids: [lease_id] });
    } catch (error) {
      this.#report(error, held.job); // The lease ends by itself, and the job comes again.
    }
  }

  #delay(failure: unknown, job: Job<T>): number {
    if (failure instanceof RetryJob) return Math.max(0, Math.trunc(failure.delayMs));
    const { retryMinMs = 1_000, retryMaxMs = 300_000 } = this.options;
    const backoff = Math.min(retryMinMs * 2 ** Math.min(job.deliveries - 1, 60), retryMaxMs);
    return Math.trunc(backoff * (1 - Math.random() / 2));
  }

  async #extend(): Promise<void> {
    const held = [...this.#held.values()];
    if (held.length === 0) return;
    const jobs = held.map((one) => one.job);
    try {
      const answer = await this.client.extend(this.topic, this.node, jobs.map((job) => job.$seq), this.#leaseMs, { lease_ids: jobs.map((job) => job.lease_id) });
      for (const seq of answer.skipped) this.#held.get(seq)?.lost.abort(new ApiError(0, "lease_lost", `the lease of job ${seq} was lost`));
    } catch (error) {
      this.#report(error);
    }
  }

  #report(error: unknown, job?: Job<T>): void {
    this.options.onError?.(error, job);
  }
}

