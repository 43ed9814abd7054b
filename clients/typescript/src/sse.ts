/** One event of a server-sent event stream. */
export interface ServerSentEvent {
  event: string;
  data: string;
  /** The last id of the stream, up to this event. */
  id: string;
}

/** Parses server-sent events from text that arrives in pieces. */
export class EventParser {
  #rest = "";
  #event = "";
  #data: string[] = [];
  #id = "";
  #idOfBlock = "";

  /** The id of the last complete block, which an event stream is resumed from. */
  get lastId(): string {
    return this.#id;
  }

  /** The events that a piece of text completes. */
  *push(text: string): Generator<ServerSentEvent> {
    this.#rest += text;
    // A carriage return at the end may be the first half of a line end.
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line !== "") {
        this.#field(line);
        continue;
      }
      // Only a complete block counts: half an event has not been seen.
      this.#id = this.#idOfBlock;
      if (this.#data.length > 0) yield { event: this.#event || "message", data: this.#data.join("\n"), id: this.#id };
      this.#event = "";
      this.#data = [];
    }
  }

  #field(line: string): void {
    const colon = line.indexOf(":");
    if (colon === 0) return; // A comment: a heartbeat.
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#event = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id") this.#idOfBlock = value;
  }
}

/**
 * The events of a response. Ends with the response; throws when nothing, not even a heartbeat, arrived for `silenceMs`.
 */
export async function* readEvents(response: Response, parser: EventParser, silenceMs: number): AsyncGenerator<ServerSentEvent> {
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await within(reader.read(), silenceMs);
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

async function within<T>(promise: Promise<T>, ms: number): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("no heartbeat in time")), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
