import type { LiveItem, LiveTombstone, Start, TopicRecord, Topics } from "./types.js";
import { startsOf } from "./types.js";

/** How far each followed topic was read: what a reconnect resumes from. */
export class Positions {
  /** Behind the last item that was handed out, by topic. */
  readonly cursors: Record<string, number> = {};
  readonly #received = new Map<string, number>();
  readonly #epochs = new Map<string, number>();
  readonly #starts = new Map<string, Start>();

  begin(topics: Topics): void {
    for (const [name, start] of Object.entries(startsOf(topics))) {
      this.#starts.set(name, start);
      this.#received.delete(name);
      this.#epochs.delete(name);
    }
  }

  get topics(): string[] {
    return [...this.#starts.keys()];
  }

  has(topic: string): boolean {
    return this.#starts.has(topic);
  }

  /** Where the server says that a subscription begins. */
  placed(topic: string, fromSeq: number, epoch: number | undefined): void {
    if (!this.#received.has(topic)) {
      this.#received.set(topic, fromSeq);
      this.cursors[topic] = fromSeq;
    }
    if (epoch !== undefined) this.#epochs.set(topic, epoch);
  }

  /** Where to begin with a topic: where it was read to, or what was asked for. */
  start(topic: string): Start {
    const received = this.#received.get(topic);
    if (received === undefined) return this.#starts.get(topic) ?? {};
    const epoch = this.#epochs.get(topic);
    return epoch === undefined ? { from_seq: received } : { from_seq: received, epoch };
  }

  end(topic: string): void {
    this.#starts.delete(topic);
    this.#received.delete(topic);
    this.#epochs.delete(topic);
  }

  *records<T>(topic: string, records: TopicRecord<T>[], toSeq: number): Generator<LiveItem<T>> {
    this.#received.set(topic, toSeq);
    for (const [index, record] of records.entries()) {
      this.cursors[topic] = index === records.length - 1 ? toSeq : record.$seq;
      yield { type: "record", topic, record };
    }
    this.cursors[topic] = toSeq;
  }

  *tombstone(topic: string, tombstone: LiveTombstone, epoch?: number): Generator<LiveItem<never>> {
    const cursor = tombstone.reason === "recreated" ? 0 : tombstone.gap_to;
    if (tombstone.reason === "recreated") {
      this.#epochs.delete(topic);
      if (epoch !== undefined) this.#epochs.set(topic, epoch);
    }
    this.#received.set(topic, cursor);
    this.cursors[topic] = cursor;
    yield { type: "tombstone", topic, tombstone };
  }
}
