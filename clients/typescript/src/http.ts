import { ClosedError, ConnectionError, TopicsError, errorOf } from "./errors.js";
import { Backoff, DEFAULT_RETRY, type RetryPolicy } from "./retry.js";

/** A server and how to talk to it. */
export interface ClientOptions {
  /** The address of the server. The default is `http://127.0.0.1:4000`, and in a browser the page's own origin. */
  url?: string;
  /** The API key, or a short-lived token. */
  apiKey?: string;
  /** How long the server may take for an answer, beyond the time that a call asks it to wait. */
  timeoutMs?: number;
  retry?: Partial<RetryPolicy>;
  /** Sent with every request. */
  headers?: Record<string, string>;
  /** A replacement for the global `fetch`. */
  fetch?: typeof globalThis.fetch;
  /** A WebSocket class, for a runtime without a global one (Node 20). */
  WebSocket?: WebSocketClass;
}

export type WebSocketClass = new (url: string) => WebSocket;

export interface CallOptions {
  /** Ends the call and its retries. */
  signal?: AbortSignal;
}

export interface HttpRequest extends CallOptions {
  query?: Record<string, string | number | boolean | null | undefined>;
  body?: object;
  /** Whether the request can be sent again after a lost answer. */
  repeatable?: boolean;
  /** How long the server was asked to wait with its answer. */
  waitMs?: number;
  accept?: string;
  headers?: Record<string, string>;
}

const DEFAULT_URL = "http://127.0.0.1:4000";
const DEFAULT_TIMEOUT_MS = 10_000;

/** Sends requests, with retries where that is safe. */
export class Http {
  readonly url: string;
  readonly retry: RetryPolicy;
  readonly options: ClientOptions;
  readonly closed = new AbortController();
  readonly #headers: Record<string, string>;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: ClientOptions) {
    this.options = options;
    const url = new URL(options.url ?? pageOrigin() ?? DEFAULT_URL);
    if (!/^https?:$/.test(url.protocol) || url.username || url.password) {
      // Without the URL: a password would end up in logs.
      throw new TopicsError("url must be an http or https address without a user; pass the key as apiKey");
    }
    this.url = url.href.replace(/\/$/, "");
    this.retry = { ...DEFAULT_RETRY, ...options.retry };
    this.#headers = { ...options.headers };
    if (options.apiKey !== undefined) this.#headers.authorization = `Bearer ${options.apiKey}`;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** Sends a request and returns the decoded answer. */
  async call<T>(method: string, path: string, request: HttpRequest = {}): Promise<T> {
    const { signal, body, repeatable = true } = request;
    // Encoded once: every try sends the same bytes, the idempotency key included.
    const text = body === undefined ? undefined : JSON.stringify(body);
    const backoff = new Backoff(this.retry, this.#stop(signal));
    let maybeDone = false;
    for (;;) {
      try {
        return await this.#once<T>(method, path, request, text);
      } catch (error) {
        if (error instanceof ConnectionError) maybeDone ||= error.maybeDone;
        await backoff.wait(error, repeatable).catch((last: unknown) => {
          // A refusal to connect proves nothing about the tries before it.
          if (last instanceof ConnectionError && maybeDone && !last.maybeDone) {
            throw new ConnectionError(last.message, true, { cause: last.cause });
          }
          throw last;
        });
      }
    }
  }

  /** Opens a stream: the response as soon as its head is here. No retries. */
  async open(method: string, path: string, request: HttpRequest = {}): Promise<Response> {
    const text = request.body === undefined ? undefined : JSON.stringify(request.body);
    const response = await this.#send(method, path, request, text, this.#stop(request.signal));
    if (!response.ok) throw await errorOf(response);
    return response;
  }

  async #once<T>(method: string, path: string, request: HttpRequest, text: string | undefined): Promise<T> {
    const timeout = AbortSignal.timeout((this.options.timeoutMs ?? DEFAULT_TIMEOUT_MS) + (request.waitMs ?? 0));
    const signal = AbortSignal.any([this.#stop(request.signal), timeout]);
    const response = await this.#send(method, path, request, text, signal);
    if (!response.ok) throw await this.#read(() => errorOf(response), request.signal);
    return this.#read(() => (request.accept === "text/plain" ? response.text() : response.json()), request.signal) as Promise<T>;
  }

  async #send(method: string, path: string, request: HttpRequest, text: string | undefined, signal: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { ...this.#headers, ...request.headers };
    if (text !== undefined) headers["content-type"] = "application/json";
    if (request.accept !== undefined) headers.accept = request.accept;
    const address = this.url + path + queryOf(request.query);
    try {
      return await this.#fetch(address, { method, headers, signal, ...(text === undefined ? {} : { body: text }), redirect: "error", cache: "no-store" });
    } catch (error) {
      throw this.#connectionError(error, request.signal);
    }
  }

  async #read<T>(read: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    try {
      return await read();
    } catch (error) {
      if (error instanceof SyntaxError) throw new TopicsError("the answer is not JSON", { cause: error });
      throw this.#connectionError(error, signal);
    }
  }

  #connectionError(error: unknown, signal: AbortSignal | undefined): unknown {
    if (this.closed.signal.aborted) return this.closed.signal.reason;
    if (signal?.aborted) return signal.reason;
    const cause = (error as { cause?: { code?: string; message?: string } }).cause;
    const message = (error as Error).name === "TimeoutError" ? "no answer in time" : (cause?.message ?? (error as Error).message);
    return new ConnectionError(`${this.url}: ${message}`, !isRefusal(error as Error, cause), { cause: error });
  }

  #stop(signal: AbortSignal | undefined): AbortSignal {
    return signal === undefined ? this.closed.signal : AbortSignal.any([signal, this.closed.signal]);
  }

  close(): void {
    this.closed.abort(new ClosedError("the client is closed"));
  }
}

const NEVER_CONNECTED = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "ConnectionRefused"]);

/** Whether no connection was made, so that the server cannot have seen the request. Browsers do not tell. */
function isRefusal(error: Error & { code?: string }, cause: { code?: string; message?: string } | undefined): boolean {
  // Node has the code in the cause, Bun in the error, Deno in words.
  return NEVER_CONNECTED.has(cause?.code ?? error.code ?? "") || `${error.message} ${cause?.message}`.includes("client error (Connect)");
}

function queryOf(query: HttpRequest["query"]): string {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null);
  return given.length === 0 ? "" : `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

function pageOrigin(): string | undefined {
  const place = (globalThis as { document?: unknown; location?: { origin: string } });
  return place.document === undefined ? undefined : place.location?.origin;
}
