import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { TopicsClient, hasCode, type LiveItem } from "topics-client";
import { FaultProxy, TestServer, take, topicName } from "./server.js";

let server: TestServer;
let client: TopicsClient;

before(async () => {
  server = await TestServer.start({ TOPICS_API_KEYS: "secret" });
  client = new TopicsClient({ url: server.url, apiKey: "secret" });
});
after(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

const seqs = (items: LiveItem[]) => items.flatMap((item) => (item.type === "record" ? [item.record.$seq] : []));

test("a watcher yields the past, then what is new", async () => {
  const topic = topicName();
  await client.appendMany(topic, [{ data: 1 }, { data: 2 }]);
  const watcher = client.watch({ [topic]: 1 });
  const items = watcher[Symbol.asyncIterator]();
  assert.equal((await items.next()).value.record.data, 2);
  assert.equal((await items.next()).value.type, "caught-up");
  await client.append(topic, 3);
  assert.equal((await items.next()).value.record.data, 3);
  assert.deepEqual({ ...watcher.cursors }, { [topic]: 3 });
  await client.deleteTopic(topic);
  let last: LiveItem | undefined;
  for (let item = await items.next(); !item.done; item = await items.next()) last = item.value;
  assert.equal(last?.type, "topic-deleted");
});

test("a watcher reports lost records", async () => {
  const topic = topicName();
  await client.putTopic(topic, { cap_records: 1 });
  await client.appendMany(topic, [1, 2, 3].map((data) => ({ data })));
  const items = await take(2, client.watch(topic));
  assert.deepEqual(items.map((item) => item.type), ["tombstone", "record"]);
});

test("a watcher continues without loss or repetition when its connections break", async () => {
  const topic = topicName();
  await client.putTopic(topic);
  await using proxy = await FaultProxy.start(server.port, ["pass", "cut-in-answer", "refuse"]);
  const faulty = new TopicsClient({ url: proxy.url, apiKey: "secret" });
  const reading = (async () => {
    const found: number[] = [];
    for await (const item of faulty.watch<number>(topic, { limit: 7 })) {
      if (item.type === "record") found.push(item.record.data);
      if (found.length === 300) break;
    }
    return found;
  })();
  for (let index = 0; index < 300; index++) {
    await client.append(topic, index);
    if (index % 60 === 30) proxy.cut();
  }
  assert.deepEqual(await reading, Array.from({ length: 300 }, (_, index) => index));
  faulty.close();
});

test("watchUrl opens an event stream without a header", async () => {
  const topic = topicName();
  await client.append(topic, "seen");
  const response = await fetch(await client.watchUrl(topic));
  assert.equal(response.status, 200);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (!text.includes("event: record")) text += (await reader.read()).value ?? assert.fail("the stream ended");
  await reader.cancel();
});

test("a socket publishes and follows", async () => {
  const topic = topicName();
  const socket = client.socket<number>();
  assert.equal((await socket.publish(topic, [{ data: 1 }])).first_seq, 1);
  await socket.subscribe({ [topic]: 0 });
  const many = await Promise.all(Array.from({ length: 99 }, (_, index) => socket.publish(topic, [{ data: index + 2 }])));
  assert.deepEqual(many.map((one) => one.first_seq), Array.from({ length: 99 }, (_, index) => index + 2));
  const found: number[] = [];
  for await (const item of socket) {
    if (item.type === "record") found.push(item.record.data);
    if (found.length === 100) break;
  }
  assert.deepEqual(found, Array.from({ length: 100 }, (_, index) => index + 1));
  assert.equal(socket.cursors[topic], 100);
  await socket.ping();
  await socket.unsubscribe(topic);
  await assert.rejects(socket.publish("bad name!", [{ data: 1 }]), (error) => hasCode(error, "invalid_request"));
  await assert.rejects(socket.subscribe("missing-topic"), (error) => hasCode(error, "topic_not_found"));
  socket.close();
  await assert.rejects(socket.ping());
});

test("a socket whose connection breaks loses and repeats nothing", async () => {
  const topic = topicName();
  await client.putTopic(topic);
  await using proxy = await FaultProxy.start(server.port, []);
  const faulty = new TopicsClient({ url: proxy.url, apiKey: "secret" });
  const socket = faulty.socket<number>();
  await socket.subscribe({ [topic]: 0 });
  const sent: Promise<unknown>[] = [];
  const cutting = setInterval(() => proxy.cut(), 60);
  const found: number[] = [];
  const reading = (async () => {
    for await (const item of socket) {
      if (item.type === "record") found.push(item.record.data);
      if (found.length === 400) break;
    }
  })();
  for (let index = 0; index < 400; index++) {
    sent.push(socket.publish(topic, [{ data: index }]));
    if (index % 10 === 9) await sent.at(-1);
    if (index === 300) clearInterval(cutting);
  }
  await Promise.all(sent);
  await reading;
  assert.equal((await client.getTopic(topic)).count, 400);
  assert.deepEqual([...found].sort((a, b) => a - b), Array.from({ length: 400 }, (_, index) => index));
  faulty.close();
});

test("a socket that nobody reads keeps a bounded number of items, and all of them arrive", async () => {
  const topic = topicName();
  const count = 30_000;
  for (let first = 0; first < count; first += 5_000) {
    await client.appendMany(topic, Array.from({ length: 1_000 }, (_, index) => ({ data: first + index })));
    for (let more = 1_000; more < 5_000; more += 1_000) await client.appendMany(topic, Array.from({ length: 1_000 }, (_, index) => ({ data: first + more + index })));
  }
  const socket = client.socket<number>();
  await socket.subscribe({ [topic]: 0 });
  await new Promise((resolve) => setTimeout(resolve, 300));
  const found = [];
  for await (const item of socket) {
    if (item.type === "record") found.push(item.record.data);
    if (found.length === count) break;
  }
  assert.deepEqual(found, Array.from({ length: count }, (_, index) => index));
  socket.close();
});

test("a follower, a watcher and a socket outlive a crash of the server", async () => {
  await using own = await TestServer.start();
  const reader = new TopicsClient({ url: own.url });
  await reader.putTopic("log", { durability: "fsync" });
  await reader.append("log", 0);
  const socket = reader.socket();
  await socket.subscribe("log");
  const iterations = [
    take(3, (async function* () { for await (const item of reader.follow("log", { wait_ms: 500 })) if (item.type === "record") yield item.record.data; })()),
    take(3, (async function* () { for await (const item of reader.watch("log")) if (item.type === "record") yield item.record.data; })()),
    take(3, (async function* () { for await (const item of socket) if (item.type === "record") yield item.record.data; })()),
  ];
  await new Promise((resolve) => setTimeout(resolve, 200));
  await own.end("SIGKILL");
  const appended = reader.append("log", 1); // Sent while the server is away.
  await own.start();
  await appended;
  await reader.append("log", 2);
  assert.deepEqual(await Promise.all(iterations), [[0, 1, 2], [0, 1, 2], [0, 1, 2]]);
  reader.close();
});

test("a key that may not read is refused at once", async () => {
  const stranger = new TopicsClient({ url: server.url, apiKey: "wrong" });
  await assert.rejects(take(1, stranger.watch("any")), (error) => hasCode(error, "unauthorized"));
  await assert.rejects(take(1, stranger.follow("any")), (error) => hasCode(error, "unauthorized"));
  await assert.rejects(stranger.socket().ping(), (error) => hasCode(error, "unauthorized"));
  stranger.close();
  assert.deepEqual(seqs([]), []);
});
