import type { TopicsClient, AppendOptions } from "./client.js";
import { ClosedError } from "./errors.js";
import type { NewRecord } from "./types.js";

export interface ProducerOptions extends AppendOptions {
  /** How long a record waits for others before the batch is sent. */
  lingerMs?: number;
  /** The most records of a batch. */
  batchRecords?: number;
}

interface Waiting {
  record: NewRecord;
  resolve(seq: number): void;
  reject(error: unknown): void;
}

/** Batches single records: one request is under way at a time, and what arrives meanwhile goes with the next one. */
export class Producer {
  #waiting: Waiting[] = [];
  #sending: Promise<void> | undefined;
  #closed = false;

  constructor(
    private readonly client: TopicsClient,
    private readonly topic: string,
    private readonly options: ProducerOptions,
  ) {}

  /** Appends a record; resolves to its seq. */
  append(data: unknown, rest: Omit<NewRecord, "data"> = {}): Promise<number> {
    if (this.#closed) return Promise.reject(new ClosedError("the producer is closed"));
    return new Promise((resolve, reject) => {
      this.#waiting.push({ record: { data, ...rest }, resolve, reject });
      this.#sending ??= this.#send().finally(() => (this.#sending = undefined));
    });
  }

  /** Resolves when everything that was appended before has been answered. */
  async flush(): Promise<void> {
    while (this.#sending !== undefined) await this.#sending;
  }

  /** Sends what is waiting and takes nothing more. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.flush();
  }

  async #send(): Promise<void> {
    const { lingerMs = 0, batchRecords = 500, ...options } = this.options;
    while (this.#waiting.length > 0) {
      if (lingerMs > 0 && this.#waiting.length < batchRecords) await new Promise((resolve) => setTimeout(resolve, lingerMs));
      else await Promise.resolve();
      const batch = this.#waiting.splice(0, batchRecords);
      try {
        const answer = await this.client.appendMany(this.topic, batch.map((one) => one.record), options);
        batch.forEach((one, index) => one.resolve(answer.first_seq + index));
      } catch (error) {
        batch.forEach((one) => one.reject(error));
      }
    }
  }
}
