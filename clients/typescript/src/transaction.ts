import type { CallOptions, Http } from "./http.js";
import { newKey } from "./retry.js";
import type { JobTerms, NewRecord, TransactionState } from "./types.js";

export interface TransactionOptions extends CallOptions {
  /** The name of this attempt; workers that share an attempt use one name. */
  attempt?: string;
  /** How long the transaction may stay idle before it is aborted. */
  timeout_ms?: number;
}

const PATH = "/v0/transactions";

/** An open transaction: records are staged, and become visible in all topics at the commit. */
export class Transaction {
  #parts = 0;

  private constructor(
    private readonly http: Http,
    readonly id: string,
    readonly sequence: number,
    private readonly attempt: string,
    private readonly options: CallOptions,
    /** The earlier commit of this sequence; then nothing is staged. */
    readonly committed: TransactionState | undefined,
  ) {}

  static async begin(http: Http, id: string, sequence: number, options: TransactionOptions): Promise<Transaction> {
    const { signal, timeout_ms } = options;
    // A name of our own, so that a repeated request joins the attempt instead of replacing it.
    const attempt = options.attempt ?? `a-${newKey().replace(/[^A-Za-z0-9]/g, "")}`;
    const call = signal === undefined ? {} : { signal };
    const state = await http.call<TransactionState>("POST", PATH, { body: { id, sequence, attempt, ...(timeout_ms !== undefined && { timeout_ms }) }, ...call });
    return new Transaction(http, id, sequence, attempt, call, state.state === "committed" ? state : undefined);
  }

  /** Whether this sequence was committed before. Then appends are dropped. */
  get deduped(): boolean {
    return this.committed !== undefined;
  }

  append(topic: string, data: unknown, rest: Omit<NewRecord, "data"> = {}, terms: JobTerms = {}): Promise<void> {
    return this.appendMany(topic, [{ data, ...rest }], terms);
  }

  /** The delay of jobs begins at the commit. */
  async appendMany(topic: string, records: readonly NewRecord[], terms: JobTerms = {}): Promise<void> {
    if (this.committed !== undefined) return;
    // Staging a part again replaces it: a lost answer does no harm.
    const part = `p${++this.#parts}`;
    await this.http.call("POST", this.#path("stage"), { body: { ...this.#step, part, topic, records, ...terms }, ...this.options });
  }

  async commit(): Promise<TransactionState> {
    return this.committed ?? this.http.call("POST", this.#path("commit"), { body: this.#step, ...this.options });
  }

  async abort(): Promise<void> {
    if (this.committed === undefined) await this.http.call("POST", this.#path("abort"), { body: this.#step, ...this.options });
  }

  get #step(): { sequence: number; attempt: string } {
    return { sequence: this.sequence, attempt: this.attempt };
  }

  #path(call: string): string {
    return `${PATH}/${encodeURIComponent(this.id)}/${call}`;
  }
}
