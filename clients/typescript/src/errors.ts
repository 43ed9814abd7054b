/** The base of every error that this package throws. */
export class TopicsError extends Error {
  override name = "TopicsError";
}

/** An error answer of the server. Branch on `code`; `message` is a sentence for people and may change. */
export class ApiError extends TopicsError {
  override name = "ApiError";

  constructor(
    /** The HTTP status; 0 for a refusal over a WebSocket or an event stream. */
    readonly status: number,
    readonly code: string,
    message: string,
    readonly detail: Readonly<Record<string, unknown>> = {},
    /** How long the server asks to wait before the next try. */
    readonly retryAfterMs?: number,
  ) {
    super(message);
  }

  /** Whether the same request can succeed later without a change. */
  get isTemporary(): boolean {
    return this.status === 429 || this.status === 503 || TEMPORARY_CODES.has(this.code);
  }
}

const TEMPORARY_CODES = new Set(["throttled", "not_ready", "shutting_down", "transaction_busy", "disk_full", "system_busy"]);

/** The server could not be reached, or the connection broke before the answer. */
export class ConnectionError extends TopicsError {
  override name = "ConnectionError";

  constructor(
    message: string,
    /** Whether the server may have carried the request out. */
    readonly maybeDone: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** The client, socket or stream was closed by its owner. */
export class ClosedError extends TopicsError {
  override name = "ClosedError";
}

/** Whether an error is the server's answer with this code. */
export function hasCode(error: unknown, code: string): error is ApiError {
  return error instanceof ApiError && error.code === code;
}

/** The error in a failed HTTP response. */
export async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  const header = response.headers.get("retry-after");
  let retryAfterMs = header !== null && /^\d+$/.test(header) ? Number(header) * 1000 : undefined;
  try {
    const { code, message, detail } = JSON.parse(text).error as { code: string; message: string; detail?: Record<string, unknown> };
    // The header is in whole seconds; the detail is exact.
    if (typeof detail?.retry_after_ms === "number") retryAfterMs = detail.retry_after_ms;
    return new ApiError(response.status, code, message, detail, retryAfterMs);
  } catch {
    // A proxy, or another server: it has no code of ours.
    const shown = `the server answered ${response.status} ${response.statusText}: ${text.slice(0, 200)}`;
    return new ApiError(response.status, "unexpected_answer", shown, {}, retryAfterMs);
  }
}
