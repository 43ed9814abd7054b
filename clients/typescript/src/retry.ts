import { ApiError, ConnectionError } from "./errors.js";

/** When a request that failed is sent again. */
export interface RetryPolicy {
  /** No try begins later than this after the first one; 0 never tries again. */
  deadlineMs: number;
  /** The wait after the first failure. It doubles with each further one, less a random part. */
  backoffMinMs: number;
  backoffMaxMs: number;
}

export const DEFAULT_RETRY: RetryPolicy = { deadlineMs: 30_000, backoffMinMs: 50, backoffMaxMs: 2_000 };

const GATEWAY_STATUSES = new Set([502, 503, 504]);

/** Whether the same request can be sent again: it could succeed, and does no harm if it was carried out before. */
export function mayRetry(error: unknown, repeatable: boolean): boolean {
  if (error instanceof ConnectionError) return repeatable || !error.maybeDone;
  if (!(error instanceof ApiError)) return false;
  if (error.code === "unexpected_answer") return error.status === 429 || (repeatable && GATEWAY_STATUSES.has(error.status));
  if (error.code === "request_timeout") return repeatable;
  return error.code !== "read_only" && error.isTemporary;
}

/** Counts the failures of one operation and computes the waits between its tries. */
export class Backoff {
  #failures = 0;
  #began: number | undefined;

  constructor(
    private readonly policy: RetryPolicy,
    private readonly signal?: AbortSignal,
  ) {}

  succeeded(): void {
    this.#failures = 0;
    this.#began = undefined;
  }

  /** Waits before the next try, or throws `error` when there is none. */
  async wait(error: unknown, repeatable = true): Promise<void> {
    if (!mayRetry(error, repeatable)) throw error;
    const now = performance.now();
    this.#began ??= now;
    this.#failures += 1;
    const backoff = Math.min(this.policy.backoffMinMs * 2 ** Math.min(this.#failures - 1, 60), this.policy.backoffMaxMs);
    const asked = error instanceof ApiError ? error.retryAfterMs : undefined;
    const delay = asked === undefined ? backoff * (1 - Math.random() / 2) : asked + backoff * Math.random();
    if (now + delay > this.#began + this.policy.deadlineMs) throw error;
    await sleep(delay, this.signal);
  }
}

/** Resolves after a while; rejects with the reason of the signal when that is aborted first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    signal?.addEventListener("abort", abort, { once: true });
  });
}

const KEY_BYTES = 15;

/** A random idempotency key: 120 bits as 20 characters. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(KEY_BYTES));
  return btoa(String.fromCharCode(...bytes));
}
