import { Consumer, type ConsumerOptions } from "./consumer.js";
import { hasCode } from "./errors.js";
import { Follower, type FollowOptions } from "./follow.js";
import { Http, type CallOptions, type ClientOptions } from "./http.js";
import { Producer, type ProducerOptions } from "./producer.js";
import { newKey } from "./retry.js";
import { Socket, type SocketOptions } from "./socket.js";
import { Transaction, type TransactionOptions } from "./transaction.js";
import type * as t from "./types.js";
import { startsOf } from "./types.js";
import { Watcher, type WatchOptions } from "./watch.js";
import { Worker, type JobHandler, type WorkerOptions } from "./worker.js";

export interface AppendOptions extends CallOptions, t.AppendFields {
  /** Whether the answer lists every seq. */
  returnSeqs?: boolean;
}

export interface LeaseOptions extends CallOptions {
  /** The `lease_id` of each job, so that a late worker cannot end another one's lease. */
  lease_ids?: string[];
}

export interface ListOptions extends CallOptions {
  prefix?: string;
  page_size?: number;
}

/** Names of topics cannot have a slash; those of streams can, and are addressed with `streams`. */
export interface ConsumerCallOptions extends CallOptions {
  streams?: boolean;
}

const at = (topic: string, call = "") => `/v0/topics/${encodeURIComponent(topic)}${call}`;

const consumerAt = (topic: string, consumer: string, call = "") => at(topic, `/consumers/${encodeURIComponent(consumer)}${call}`);

/** A client for /v0 of a topics server. Every method sends one request, with retries where these are safe. */
export class TopicsClient {
  /** The transport, for extensions. */
  readonly http: Http;

  constructor(options: ClientOptions = {}) {
    this.http = new Http(options);
  }

  /** Ends every call, stream and socket of this client. */
  close(): void {
    this.http.close();
  }

  // Topics

  /** Creates a topic or replaces its config. */
  putTopic(topic: string, config: t.TopicConfigPatch = {}, options: CallOptions = {}): Promise<t.TopicPut> {
    return this.http.call("PUT", at(topic), { body: config, ...options });
  }

  getTopic(topic: string, { touch, ...options }: CallOptions & { touch?: boolean } = {}): Promise<t.TopicState> {
    return this.http.call("GET", at(topic), { query: { touch }, ...options });
  }

  /** One page of topics; `listAllTopics` iterates over all of them. */
  listTopics({ signal, ...query }: ListOptions & { cursor?: string } = {}): Promise<t.TopicPage> {
    return this.http.call("GET", "/v0/topics", { query: { ...query }, ...(signal && { signal }) });
  }

  async *listAllTopics(options: ListOptions = {}): AsyncGenerator<t.TopicSummary> {
    let cursor: string | null | undefined;
    do {
      const page: t.TopicPage = await this.listTopics({ ...options, ...(cursor ? { cursor } : {}) });
      yield* page.topics;
      cursor = page.next_cursor;
    } while (cursor);
  }

  /** Deletes a topic with everything in it. */
  deleteTopic(topic: string, { if_empty, ...options }: CallOptions & { if_empty?: boolean } = {}): Promise<t.Dropped> {
    return this.http.call("DELETE", at(topic), { query: { if_empty }, ...options });
  }

  // Records

  /** Appends one record. */
  append(topic: string, data: unknown, { tag, meta, ...options }: AppendOptions & Pick<t.NewRecord, "tag" | "meta"> = {}): Promise<t.Appended> {
    const record = { data, ...(tag !== undefined && { tag }), ...(meta !== undefined && { meta }) };
    return this.appendMany(topic, [record], options);
  }

  /** Appends a batch: all of its records or none, with consecutive seqs. */
  appendMany(topic: string, records: readonly t.NewRecord[], options: AppendOptions = {}): Promise<t.Appended> {
    const { signal, returnSeqs, ...fields } = options;
    // With a key the server appends once, however often the request has to be sent.
    const body = { idempotency_check: true, ...fields, idempotency_key: fields.idempotency_key ?? newKey(), records };
    return this.http.call("POST", at(topic), { body, query: { return_seqs: returnSeqs }, ...(signal && { signal }) });
  }

  /** Reads the records behind a cursor. */
  diff<T = unknown>(topic: string, { signal, ...fields }: t.DiffFields & CallOptions = {}): Promise<t.Diff<T>> {
    return this.http.call("POST", at(topic, "/diff"), { body: fields, waitMs: fields.wait_ms ?? 0, ...(signal && { signal }) });
  }

  /** Iterates over everything behind a cursor and waits for new records. */
  follow<T = unknown>(topic: string, options: FollowOptions = {}): Follower<T> {
    return new Follower<T>(this.http, at(topic, "/diff"), options);
  }

  /** Deletes records by tag or below a seq. */
  deleteRecords(topic: string, { signal, ...fields }: t.DeleteFields & CallOptions): Promise<t.Deleted> {
    return this.http.call("POST", at(topic, "/delete"), { body: fields, ...(signal && { signal }) });
  }

  /** Searches the records of a topic. */
  search(topic: string, { signal, ...fields }: t.SearchFields & CallOptions): Promise<t.SearchPage> {
    return this.http.call("POST", at(topic, "/search"), { body: fields, ...(signal && { signal }) });
  }

  /** Batches single appends; for many records from many places of a program. */
  producer(topic: string, options: ProducerOptions = {}): Producer {
    return new Producer(this, topic, options);
  }

  /**
   * Appends to several topics at one moment. `work` stages records; they are committed when it returns and dropped when
   * it throws. A `sequence` of the same `id` that was committed before is not committed again.
   */
  async transaction<R>(id: string, sequence: number, work: (step: Transaction) => Promise<R>, options: TransactionOptions = {}): Promise<t.TransactionState> {
    const step = await Transaction.begin(this.http, id, sequence, options);
    try {
      await work(step);
    } catch (error) {
      await step.abort().catch(() => undefined);
      throw error;
    }
    return step.commit();
  }

  // Live delivery

  /** Iterates over the records of several topics as they are appended, over one event stream. */
  watch<T = unknown>(topics: t.Topics, options: WatchOptions = {}): Watcher<T> {
    return new Watcher<T>(this.http, topics, options);
  }

  /**
   * The address of a new watch for a browser's `EventSource`, which sends no headers: with a key, it contains a
   * short-lived token.
   */
  async watchUrl(topics: t.Topics, { signal, deadlineMs: _, ...fields }: WatchOptions = {}): Promise<string> {
    const body = { ...fields, topics: startsOf(topics) };
    const session = await this.http.call<{ stream_url: string }>("POST", "/v0/watch", { body, ...(signal && { signal }) });
    const url = new URL(this.http.url + session.stream_url);
    if (this.http.options.apiKey !== undefined) url.searchParams.set("token", (await this.createToken()).token);
    return url.href;
  }

  /** One WebSocket to publish over and to follow topics with. */
  socket<T = unknown>(options: SocketOptions = {}): Socket<T> {
    return new Socket<T>(this.http, options);
  }

  // Consumers

  /** Creates a consumer: a cursor that the server stores. An existing one does not change. */
  putConsumer(topic: string, consumer: string, { signal, streams, ...start }: t.ConsumerStart & ConsumerCallOptions = {}): Promise<t.ConsumerPut> {
    return this.http.call("PUT", consumerAt(topic, consumer), { body: start, query: { streams }, ...(signal && { signal }) });
  }

  getConsumer(topic: string, consumer: string, { signal, streams }: ConsumerCallOptions = {}): Promise<t.ConsumerState> {
    return this.http.call("GET", consumerAt(topic, consumer), { query: { streams }, ...(signal && { signal }) });
  }

  /** One page of the consumers of a topic. */
  listConsumers(topic: string, { signal, ...query }: ConsumerCallOptions & { page_size?: number; cursor?: string } = {}): Promise<t.ConsumerPage> {
    return this.http.call("GET", at(topic, "/consumers"), { query, ...(signal && { signal }) });
  }

  /** The consumers of all topics whose names begin with `prefix`. */
  async *listAllConsumers({ signal, ...query }: ListOptions = {}): AsyncGenerator<t.ConsumerState> {
    let cursor: string | undefined;
    do {
      const page: t.ConsumerPage = await this.http.call("GET", "/v0/consumers", { query: { ...query, cursor }, ...(signal && { signal }) });
      yield* page.consumers;
      cursor = page.next_cursor;
    } while (cursor);
  }

  /** Deletes a consumer and its cursor; the records stay. */
  deleteConsumer(topic: string, consumer: string, { signal, streams }: ConsumerCallOptions = {}): Promise<t.ConsumerDropped> {
    return this.http.call("DELETE", consumerAt(topic, consumer), { query: { streams }, ...(signal && { signal }) });
  }

  /** Moves a cursor forward: everything up to `seq` is processed. It moves back only with `force`. */
  commitConsumer(topic: string, consumer: string, { signal, streams, ...fields }: t.ConsumerCommit & ConsumerCallOptions): Promise<t.ConsumerCommitted> {
    // Forced twice it could take back what another one committed in between.
    const repeatable = fields.force !== true;
    return this.http.call("POST", consumerAt(topic, consumer, "/commit"), { body: fields, query: { streams }, repeatable, ...(signal && { signal }) });
  }

  /** Reads the records behind the committed cursor; commits nothing. */
  readConsumer<T = unknown>(topic: string, consumer: string, { signal, streams, ...fields }: t.ConsumerRead & ConsumerCallOptions = {}): Promise<t.Diff<T>> {
    const waitMs = fields.wait_ms ?? 0;
    return this.http.call("POST", consumerAt(topic, consumer, "/read"), { body: fields, query: { streams }, waitMs, ...(signal && { signal }) });
  }

  /** Iterates over everything behind the cursor of a consumer, which is created where it is missing, and commits. */
  consumer<T = unknown>(topic: string, consumer: string, options: ConsumerOptions = {}): Consumer<T> {
    return new Consumer<T>(this.http, at(topic), consumer, options);
  }

  // Queues

  /** Leases jobs to the worker `node`. */
  claim<T = unknown>(topic: string, node: string, { signal, ...fields }: t.ClaimFields & CallOptions = {}): Promise<t.Claimed<T>> {
    // Not repeated after a lost answer: the jobs of that claim would be leased to nobody until the lease ends.
    return this.http.call("POST", at(topic, "/claim"), { body: { node, ...fields }, repeatable: false, ...(signal && { signal }) });
  }

  /** Deletes jobs that are done. */
  ack(topic: string, node: string, seqs: number[], { signal, ...fields }: LeaseOptions = {}): Promise<t.Acked> {
    return this.http.call("POST", at(topic, "/ack"), { body: { node, seqs, ...fields }, ...(signal && { signal }) });
  }

  /** Gives jobs back, at once or after `delay_ms`. */
  nack(topic: string, node: string, seqs: number[], { signal, ...fields }: LeaseOptions & { delay_ms?: number; reason?: string; fatal?: boolean } = {}): Promise<t.Nacked> {
    // Without lease ids a second one could give back a lease that began in between.
    const repeatable = fields.lease_ids !== undefined;
    return this.http.call("POST", at(topic, "/nack"), { body: { node, seqs, ...fields }, repeatable, ...(signal && { signal }) });
  }

  /** Sets the deadline of jobs to `lease_ms` from now. */
  extend(topic: string, node: string, seqs: number[], lease_ms: number, { signal, ...fields }: LeaseOptions = {}): Promise<t.Extended> {
    return this.http.call("POST", at(topic, "/extend"), { body: { node, seqs, lease_ms, ...fields }, ...(signal && { signal }) });
  }

  /** Moves dead letters back into their queue. */
  redrive(topic: string, { signal, ...fields }: t.RedriveFields & CallOptions = {}): Promise<t.Redriven> {
    return this.http.call("POST", at(topic, "/redrive"), { body: fields, repeatable: false, ...(signal && { signal }) });
  }

  /** One page of the jobs that are ready, leased, delayed or dead. It may be short, or empty, while it has a `next_cursor`. */
  listJobs(topic: string, { signal, ...query }: CallOptions & { state?: "ready" | "leased" | "delayed" | "dead"; tag?: string; limit?: number; cursor?: string } = {}): Promise<t.JobPage> {
    return this.http.call("GET", at(topic, "/jobs"), { query, ...(signal && { signal }) });
  }

  /** Moves a dead letter back into its queue. The seq is that in the dead-letter topic. */
  retryJob(topic: string, seq: number, { signal }: CallOptions = {}): Promise<t.JobChanged> {
    return this.http.call("POST", at(topic, `/jobs/${seq}/retry`), { body: {}, repeatable: false, ...(signal && { signal }) });
  }

  /** Deletes a job in any state, or with `dead` a dead letter. */
  cancelJob(topic: string, seq: number, { signal, dead = false }: CallOptions & { dead?: boolean } = {}): Promise<t.JobChanged> {
    return this.http.call("POST", at(topic, `/jobs/${seq}/cancel`), { body: { dead }, ...(signal && { signal }) });
  }

  /** Makes a delayed job ready now. */
  promoteJob(topic: string, seq: number, { signal }: CallOptions = {}): Promise<t.JobChanged> {
    return this.http.call("POST", at(topic, `/jobs/${seq}/promote`), { body: {}, ...(signal && { signal }) });
  }

  /** Ends the lease of a job, whoever holds it. */
  releaseJob(topic: string, seq: number, { signal }: CallOptions = {}): Promise<t.JobChanged> {
    return this.http.call("POST", at(topic, `/jobs/${seq}/release`), { body: {}, ...(signal && { signal }) });
  }

  /** Stops handing out jobs, also over restarts, or begins again. */
  pauseQueue(topic: string, paused = true, { signal }: CallOptions = {}): Promise<t.QueuePaused> {
    return this.http.call("PUT", at(topic, "/queue"), { body: { paused }, ...(signal && { signal }) });
  }

  listLeases(topic: string, { signal, ...query }: CallOptions & { after?: number; page_size?: number; node?: string } = {}): Promise<t.LeasePage> {
    return this.http.call("GET", at(topic, "/leases"), { query, ...(signal && { signal }) });
  }

  /** A worker that calls `handler` with every job of a queue; start it with `run`. */
  worker<T = unknown>(topic: string, handler: JobHandler<T>, options: WorkerOptions = {}): Worker<T> {
    return new Worker<T>(this, topic, handler, options);
  }

  // Routers

  /** Creates a router, which copies the records of one topic into another, or changes it. */
  putRouter(router: string, config: t.RouterConfig, options: CallOptions = {}): Promise<t.RouterPut> {
    return this.http.call("PUT", `/v0/routers/${encodeURIComponent(router)}`, { body: config, ...options });
  }

  getRouter(router: string, options: CallOptions = {}): Promise<t.RouterState> {
    return this.http.call("GET", `/v0/routers/${encodeURIComponent(router)}`, options);
  }

  listRouters({ signal, ...query }: ListOptions & { cursor?: string; source?: string; dest?: string } = {}): Promise<t.RouterPage> {
    return this.http.call("GET", "/v0/routers", { query: { ...query }, ...(signal && { signal }) });
  }

  deleteRouter(router: string, options: CallOptions = {}): Promise<unknown> {
    return this.http.call("DELETE", `/v0/routers/${encodeURIComponent(router)}`, options);
  }

  // The server

  health(options: CallOptions = {}): Promise<t.Health> {
    return this.http.call("GET", "/v0/health", options);
  }

  ready(options: CallOptions = {}): Promise<t.Ready> {
    return this.http.call("GET", "/v0/ready", options);
  }

  /** The metrics in the text format of Prometheus. */
  metrics(options: CallOptions = {}): Promise<string> {
    return this.http.call("GET", "/v0/metrics", { accept: "text/plain", ...options });
  }

  /** A short-lived token for addresses that cannot carry a header. */
  createToken({ ttl_ms, ...options }: CallOptions & { ttl_ms?: number } = {}): Promise<t.Token> {
    return this.http.call("POST", "/v0/tokens", { body: ttl_ms === undefined ? {} : { ttl_ms }, ...options });
  }

  /** Whether a topic exists. */
  async hasTopic(topic: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.getTopic(topic, { touch: false, ...options });
      return true;
    } catch (error) {
      if (hasCode(error, "topic_not_found")) return false;
      throw error;
    }
  }
}
