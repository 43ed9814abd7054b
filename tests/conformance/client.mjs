// Drives the official JavaScript client through a stream's life and prints what it saw as one line of JSON.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";

const [base] = process.argv.slice(2);
const url = (name) => `${base}/v1/stream/js/${name}`;
const seen = {};

// Create, append, read, resume.
const handle = await DurableStream.create({ url: url("json"), contentType: "application/json" });
for (let n = 0; n < 5; n++) await handle.append(JSON.stringify({ n }));
const first = await stream({ url: url("json"), live: false });
seen.items = await first.json();
const resumeAt = first.offset;
await handle.append(JSON.stringify({ n: 5 }));
seen.resumed = await (await stream({ url: url("json"), offset: resumeAt, live: false })).json();

// Live tails, by both ways, until the stream is closed.
for (const live of ["long-poll", "sse"]) {
  const name = `live-${live}`;
  const tail = await DurableStream.create({ url: url(name), contentType: "text/plain" });
  const reading = (async () => {
    const response = await stream({ url: url(name), offset: "-1", live });
    let text = "";
    for await (const chunk of response.textStream()) text += chunk;
    return text;
  })();
  for (const token of ["Hello", ",", " world", "!\n", " and", " more"]) await tail.append(token);
  await tail.close();
  seen[live] = await reading;
}

// Bytes over events.
const bytes = await DurableStream.create({ url: url("bytes"), contentType: "application/octet-stream" });
await bytes.append(new Uint8Array([0, 255, 10, 13]));
await bytes.close();
const got = await stream({ url: url("bytes"), offset: "-1", live: "sse" });
const parts = [];
for await (const chunk of got.bodyStream()) parts.push(...chunk);
seen.bytes = parts;

// The idempotent producer: pipelined batches, a second run with a higher epoch, and a third that claims its own.
const target = await DurableStream.create({ url: url("produced"), contentType: "application/json" });
const errors = [];
const options = { autoClaim: true, maxBatchBytes: 64, lingerMs: 1, onError: (error) => errors.push(String(error)) };
const producer = new IdempotentProducer(target, "producer", options);
for (let n = 0; n < 200; n++) producer.append(JSON.stringify({ n }));
await producer.flush();
await producer.detach();
const second = new IdempotentProducer(target, "producer", { ...options, epoch: 1 });
for (let n = 200; n < 250; n++) second.append(JSON.stringify({ n }));
await second.detach();
const third = new IdempotentProducer(target, "producer", options);
for (let n = 250; n < 300; n++) third.append(JSON.stringify({ n }));
await third.flush();
await third.close();
seen.produced = (await (await stream({ url: url("produced"), live: false })).json()).map((item) => item.n);
seen.errors = errors;
const { streamClosed } = await target.head();
seen.closed = streamClosed;
console.log(JSON.stringify(seen));
