import type { components } from "./openapi.js";

type Schemas = components["schemas"];

/** A JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** A record to append. */
export interface NewRecord<T = unknown> {
  data: T;
  tag?: string;
  node?: string;
  meta?: Record<string, unknown>;
}

/** A record as the server returns it. */
export type TopicRecord<T = unknown> = Omit<Schemas["RecordOut"], "data"> & { data: T };
/** A claimed job: a record with its lease. */
export type Job<T = unknown> = Omit<Schemas["JobOut"], "data"> & { data: T };
/** A range of records that were lost, and the reason. */
export type Tombstone = Schemas["Tombstone"];

export type TopicConfig = Schemas["TopicConfig"];
export type TopicConfigPatch = Schemas["TopicConfigPatch"];
export type TopicState = Schemas["TopicAnswer"];
export type TopicPut = Schemas["PutAnswer"];
export type TopicSummary = Schemas["TopicSummary"];
export type TopicPage = Schemas["ListAnswer"];
export type Dropped = Schemas["DropAnswer"];
export type Appended = Schemas["AppendAnswer"];
export type AppendFields = Omit<Schemas["AppendBody"], "records">;
/** When and in which order jobs of a queue can be claimed. */
export type JobTerms = Pick<AppendFields, "delay_ms" | "run_at" | "priority">;
export type DiffFields = Schemas["DiffBody"];
export type Diff<T = unknown> = Omit<Schemas["DiffAnswer"], "records"> & { records: TopicRecord<T>[] };
/** Which records to delete: at least one of both. */
export interface DeleteFields {
  /** Records with a lower seq. */
  before_seq?: number;
  /** A tag, or `["tag", "Glob", "order-*"]`. */
  match?: string | ["tag", "Eq" | "Glob", string];
}
export type Deleted = Schemas["DeleteAnswer"];
export type SearchFields = Schemas["TopicSearchBody"];
export type SearchPage = Schemas["TopicSearchAnswer"];
export type RouterConfig = Schemas["RouterBody"];
export type RouterState = Schemas["RouterAnswer"];
export type RouterPut = Schemas["RouterPutAnswer"];
export type RouterPage = Schemas["RouterListAnswer"];
export type ClaimFields = Omit<Schemas["ClaimBody"], "node">;
export type Claimed<T = unknown> = Omit<Schemas["ClaimAnswer"], "claimed"> & { claimed: Job<T>[] };
export type Acked = Schemas["AckAnswer"];
export type Nacked = Schemas["NackAnswer"];
export type Extended = Schemas["ExtendAnswer"];
export type RedriveFields = Schemas["RedriveBody"];
export type Redriven = Schemas["RedriveAnswer"];
export type JobPage = Schemas["JobsAnswer"];
export type JobChanged = Schemas["JobAnswer"];
export type QueuePaused = Schemas["QueueAnswer"];
export type LeasePage = Schemas["LeasesAnswer"];
/** Where a new consumer begins; the default is the beginning of the topic. */
export type ConsumerStart = Schemas["ConsumerBody"];
export type ConsumerCommit = Schemas["CommitConsumerBody"];
export type ConsumerRead = Schemas["ReadConsumerBody"];
export type ConsumerState = Schemas["ConsumerOut"];
export type ConsumerPut = Schemas["ConsumerPutAnswer"];
export type ConsumerCommitted = Schemas["ConsumerCommitAnswer"];
export type ConsumerDropped = Schemas["ConsumerDropAnswer"];
export type ConsumerPage = Schemas["ConsumerListAnswer"];
export type TransactionState = Schemas["TransactionAnswer"];
export type Token = Schemas["TokenAnswer"];
export type Health = Schemas["HealthAnswer"];
export type Ready = Schemas["ReadyAnswer"];

/** Where a subscription begins. */
export interface Start {
  /** Records with a higher seq; 0 is the beginning. */
  from_seq?: number;
  /** Only records that are appended from now on. */
  tail?: boolean;
  /** The epoch of the topic that `from_seq` belongs to. */
  epoch?: number;
}

/** Names of topics, or a start for each: a cursor, a start, or null for new records only. */
export type Topics = string | readonly string[] | Readonly<Record<string, number | Start | null>>;

export interface SubscribeFields {
  /** Records of these nodes are left out. */
  node?: string | string[];
  /** The most records of one event. */
  limit?: number;
  max_batch_bytes?: number;
  include_data?: boolean;
  include_tags?: boolean;
  include_meta?: boolean;
}

/** An item of a watch or a socket. */
export type LiveItem<T = unknown> =
  | { type: "record"; topic: string; record: TopicRecord<T> }
  | { type: "tombstone"; topic: string; tombstone: LiveTombstone }
  | { type: "caught-up"; topic: string; head_seq: number }
  | { type: "topic-deleted"; topic: string; head_seq: number }
  | { type: "topic-failed"; topic: string; code: string; message: string };

/** A loss as watches and sockets report it. */
export interface LiveTombstone {
  gap_from: number;
  gap_to: number;
  reason: string;
  earliest_seq: number;
  head_seq: number;
}

/** The start of each topic, as the wire has it. */
export function startsOf(topics: Topics): Record<string, Start> {
  if (typeof topics === "string") return { [topics]: {} };
  if (Array.isArray(topics)) return Object.fromEntries(topics.map((name: string) => [name, {}]));
  return Object.fromEntries(
    Object.entries(topics as Record<string, number | Start | null>).map(([name, start]) => [
      name,
      start === null ? { tail: true } : typeof start === "number" ? { from_seq: start } : start,
    ]),
  );
}
