import { ApiError, ClosedError, ConnectionError, TopicsError } from "./errors.js";
import type { CallOptions, Http } from "./http.js";
import { Positions } from "./positions.js";
import { Backoff, newKey } from "./retry.js";
import { startsOf, type Appended, type AppendFields, type LiveItem, type NewRecord, type SubscribeFields, type Token, type Topics } from "./types.js";

export interface SocketOptions extends CallOptions {
  /** How long to reconnect while the server is away; the default is without end. */
  deadlineMs?: number;
}

interface Command {
  frame: Record<string, unknown>;
  /** A subscription that this client takes up again by itself. */
  resumes: boolean;
  resolve(answer: unknown): void;
  reject(error: unknown): void;
}

interface Frame {
  op: string;
  request_id?: number;
  topic?: string;
  topics?: Record<string, { from_seq: number; epoch?: number }>;
  records?: never[];
  to_seq?: number;
  head_seq?: number;
  code?: string;
  message?: string;
  detail?: Record<string, unknown>;
}

const ITEMS_MAX = 10_000;
const ITEMS_RESUME = 1_000;
const TOKEN_TTL_MS = 60_000;

/** One WebSocket: publishes to topics and follows them. Reconnects; no publish is carried out twice. */
export class Socket<T = unknown> implements AsyncIterable<LiveItem<T>> {
  readonly #positions = new Positions();
  readonly #options = new Map<string, SubscribeFields>();
  readonly #commands = new Map<number, Command>();
  readonly #items: LiveItem<T>[] = [];
  readonly #ended = new AbortController();
  #wakeReader: (() => void) | undefined;
  #failure: unknown;
  #lastId = 0;
  #socket: WebSocket | undefined;
  #running: Promise<void> | undefined;
  #paused = false;

  constructor(
    private readonly http: Http,
    private readonly options: SocketOptions,
  ) {
    const stop = () => this.close();
    options.signal?.addEventListener("abort", stop, { once: true });
    http.closed.signal.addEventListener("abort", stop, { once: true });
  }

  /** Behind the last item that was handed out, by topic. */
  get cursors(): Readonly<Record<string, number>> {
    return this.#positions.cursors;
  }

  /** Appends records to a topic; resolves when they are as durable as the topic promises. */
  publish(topic: string, records: readonly NewRecord[], fields: AppendFields = {}): Promise<Appended> {
    const key = fields.idempotency_key ?? newKey();
    const command = { op: "publish", topic, records, idempotency_check: true, ...fields, idempotency_key: key };
    return this.#ask(command) as Promise<Appended>;
  }

  /** Follows topics; their records come out of the iteration over this socket. */
  async subscribe(topics: Topics, fields: SubscribeFields = {}): Promise<void> {
    this.#positions.begin(topics);
    for (const name of Object.keys(startsOf(topics))) this.#options.set(name, fields);
    await this.#ask({ op: "subscribe", topics: startsOf(topics), ...fields });
  }

  async unsubscribe(...topics: string[]): Promise<void> {
    for (const topic of topics) this.#forget(topic);
    await this.#ask({ op: "unsubscribe", topics });
  }

  async ping(): Promise<void> {
    await this.#ask({ op: "ping" });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<LiveItem<T>> {
    for (;;) {
      const item = this.#items.shift();
      if (item !== undefined) {
        if (item.type === "record") this.#positions.cursors[item.topic] = item.record.$seq;
        yield item;
        if (this.#paused && this.#items.length <= ITEMS_RESUME) this.#resume();
        continue;
      }
      if (this.#failure !== undefined) throw this.#failure;
      if (this.#ended.signal.aborted) return;
      await new Promise<void>((resolve) => {
        this.#wakeReader = resolve;
      });
    }
  }

  close(): void {
    if (this.#ended.signal.aborted) return;
    this.#ended.abort(new ClosedError("the socket is closed"));
    this.#socket?.close();
    this.#end(undefined);
  }

  #ask(frame: Record<string, unknown>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.#ended.signal.aborted) return reject(this.#ended.signal.reason);
      this.#command(frame, false, resolve, reject);
      this.#running ??= this.#run();
    });
  }

  #command(frame: Record<string, unknown>, resumes: boolean, resolve: Command["resolve"], reject: Command["reject"]): void {
    const id = ++this.#lastId;
    const numbered = { ...frame, request_id: id };
    this.#commands.set(id, { frame: numbered, resumes, resolve, reject });
    if (this.#socket?.readyState === 1) this.#socket.send(JSON.stringify(numbered));
  }

  /** Keeps a connection until the socket is closed. */
  async #run(): Promise<void> {
    const backoff = new Backoff({ ...this.http.retry, deadlineMs: this.options.deadlineMs ?? Infinity }, this.#ended.signal);
    for (;;) {
      try {
        await this.#connect(() => backoff.succeeded());
      } catch (error) {
        if (this.#ended.signal.aborted) return;
        try {
          await backoff.wait(error);
        } catch (last) {
          if (this.#ended.signal.aborted) return;
          this.#end(last);
          this.#ended.abort(last);
          return;
        }
      }
    }
  }

  async #connect(useful: () => void): Promise<void> {
    const address = new URL(`${this.http.url}/v0/ws`.replace(/^http/, "ws"));
    if (this.http.options.apiKey !== undefined) {
      // A WebSocket of a browser sends no Authorization header.
      const { token } = await this.http.call<Token>("POST", "/v0/tokens", { body: { ttl_ms: TOKEN_TTL_MS } });
      address.searchParams.set("token", token);
    }
    const make = this.http.options.WebSocket ?? globalThis.WebSocket;
    if (make === undefined) {
      throw new TopicsError("this runtime has no WebSocket. Use Node 22 or newer, or pass a class as the option WebSocket.");
    }
    const socket = new make(address.href);
    await new Promise<never>((_, reject) => {
      const broke = (why: string) => reject(new ConnectionError(`${this.http.url}: ${why}`, true));
      socket.onopen = () => {
        this.#socket = socket;
        this.#resend();
      };
      socket.onmessage = ({ data }) => {
        useful();
        this.#take(JSON.parse(data as string) as Frame);
      };
      socket.onerror = () => broke("the WebSocket failed");
      socket.onclose = ({ code, reason }) => broke(`the WebSocket was closed (${code}${reason && `: ${reason}`})`);
    }).finally(() => {
      this.#socket = undefined;
      socket.onmessage = socket.onclose = socket.onerror = null;
      socket.close();
    });
  }

  /** Takes subscriptions up again, then sends the commands that were not answered, in their order. */
  #resend(): void {
    const waiting = [...this.#commands.values()];
    this.#commands.clear();
    const asked = new Set(waiting.filter((one) => !one.resumes).flatMap((one) => (one.frame.op === "subscribe" ? Object.keys(one.frame.topics as object) : [])));
    if (!this.#paused) this.#subscribeAgain((topic) => !asked.has(topic));
    for (const { frame, resumes, resolve, reject } of waiting) {
      if (!resumes) this.#command(frame, false, resolve, reject);
    }
  }

  #subscribeAgain(wanted: (topic: string) => boolean): void {
    for (const topic of this.#positions.topics.filter(wanted)) {
      const failed = (error: unknown) => this.#gone(topic, error);
      this.#command({ op: "subscribe", topics: { [topic]: this.#positions.start(topic) }, ...this.#options.get(topic) }, true, () => undefined, failed);
    }
  }

  #take(frame: Frame): void {
    const command = frame.request_id === undefined ? undefined : this.#commands.get(frame.request_id);
    if (command !== undefined) {
      this.#answered(frame, command);
      return;
    }
    const topic = frame.topic;
    if (topic === undefined || !this.#positions.has(topic)) return;
    if (frame.op === "record") this.#push(...this.#received(topic, frame));
    else if (frame.op === "tombstone") this.#push(...this.#positions.tombstone(topic, frame as never));
    else if (frame.op === "caught_up") this.#push({ type: "caught-up", topic, head_seq: frame.head_seq ?? 0 });
    else if (frame.op === "topic_deleted") this.#gone(topic, undefined, frame.head_seq);
    else if (frame.op === "error") this.#gone(topic, refusalOf(frame));
  }

  #received(topic: string, frame: Frame): LiveItem<T>[] {
    const cursor = this.#positions.cursors[topic] ?? 0;
    const items = [...this.#positions.records<T>(topic, frame.records ?? [], frame.to_seq ?? 0)];
    // The cursor follows the reader, not the wire.
    this.#positions.cursors[topic] = cursor;
    return items;
  }

  #answered(frame: Frame, command: Command): void {
    if (frame.op === "error" && (frame.code === "shutting_down" || frame.code === "not_ready")) return; // Sent again after the reconnect.
    this.#commands.delete(frame.request_id as number);
    if (frame.op === "error") {
      const error = refusalOf(frame);
      if (command.frame.op === "publish" && error.isTemporary) return void this.#later(command, error);
      if (command.frame.op === "subscribe" && !command.resumes) Object.keys(command.frame.topics as object).forEach((topic) => this.#forget(topic));
      command.reject(error);
      return;
    }
    if (frame.op === "subscribed") {
      for (const [topic, place] of Object.entries(frame.topics ?? {})) this.#positions.placed(topic, place.from_seq, place.epoch);
    }
    command.resolve(frame);
  }

  /** A throttled publish is sent again after the time that the server asks for. */
  #later(command: Command, error: ApiError): void {
    const timer = setTimeout(() => this.#command(command.frame, false, command.resolve, command.reject), error.retryAfterMs ?? 100);
    this.#ended.signal.addEventListener("abort", () => {
      clearTimeout(timer);
      command.reject(this.#ended.signal.reason);
    }, { once: true });
  }

  #push(...items: LiveItem<T>[]): void {
    this.#items.push(...items);
    this.#wakeReader?.();
    // A browser's WebSocket cannot be told to stop reading: leave the topics, and come back at the cursors.
    if (this.#items.length > ITEMS_MAX && !this.#paused) {
      this.#paused = true;
      this.#command({ op: "unsubscribe", topics: this.#positions.topics }, true, () => undefined, () => undefined);
    }
  }

  #resume(): void {
    this.#paused = false;
    if (this.#socket !== undefined) this.#subscribeAgain(() => true);
  }

  #gone(topic: string, error: unknown, headSeq = 0): void {
    if (!this.#positions.has(topic)) return;
    this.#forget(topic);
    if (error instanceof ApiError && error.code !== "topic_not_found") {
      this.#push({ type: "topic-failed", topic, code: error.code, message: error.message });
    } else {
      this.#push({ type: "topic-deleted", topic, head_seq: headSeq });
    }
  }

  #forget(topic: string): void {
    this.#positions.end(topic);
    this.#options.delete(topic);
  }

  #end(failure: unknown): void {
    this.#failure = failure;
    for (const command of this.#commands.values()) command.reject(failure ?? this.#ended.signal.reason);
    this.#commands.clear();
    this.#wakeReader?.();
  }
}

function refusalOf(frame: Frame): ApiError {
  const wait = frame.detail?.retry_after_ms;
  return new ApiError(0, frame.code ?? "internal", frame.message ?? "", frame.detail, typeof wait === "number" ? wait : undefined);
}
