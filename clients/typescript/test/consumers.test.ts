import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { TopicsClient, hasCode, type ConsumerOptions } from "topics-client";
import { FaultProxy, TestServer, take, topicName } from "./server.js";

let server: TestServer;
let client: TopicsClient;

before(async () => {
  server = await TestServer.start();
  client = new TopicsClient({ url: server.url });
});
after(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

async function topicOf(count: number): Promise<string> {
  const topic = topicName();
  await client.putTopic(topic);
  if (count > 0) await client.appendMany(topic, Array.from({ length: count }, (_, index) => ({ data: index + 1 })));
  return topic;
}

/** The data of everything that a consumer hands out, and a line for each gap. */
async function consume(topic: string, name: string, options: ConsumerOptions = {}, from = client): Promise<unknown[]> {
  const found: unknown[] = [];
  for await (const item of from.consumer(topic, name, { wait_ms: 0, ...options })) {
    found.push(item.type === "record" ? item.record.data : item.tombstone.reason);
  }
  return found;
}

const cursorOf = async (topic: string, name: string) => (await client.getConsumer(topic, name)).seq;

test("a loop continues behind what the last one processed, and its lag is visible", async () => {
  const topic = await topicOf(5);
  assert.deepEqual(await consume(topic, "billing", { limit: 2 }), [1, 2, 3, 4, 5]);
  const state = await client.getConsumer(topic, "billing");
  assert.deepEqual([state.seq, state.lag, state.head_seq], [5, 0, 5]);
  await client.append(topic, 6);
  assert.equal((await client.getConsumer(topic, "billing")).lag, 1);
  assert.deepEqual(await consume(topic, "billing"), [6]);
});

test("the item of a loop that was left comes again, and those before it do not", async () => {
  const topic = await topicOf(5);
  const left = async () => {
    for await (const item of client.consumer<number>(topic, "mail", { wait_ms: 0 })) {
      if (item.type === "record" && item.record.data === 3) throw new Error("no mail today");
    }
  };
  await assert.rejects(left, /no mail today/);
  assert.equal(await cursorOf(topic, "mail"), 2);
  const consumer = client.consumer<number>(topic, "mail", { wait_ms: 0 });
  for await (const item of consumer) {
    if (item.type === "record" && item.record.data === 4) {
      await consumer.commit();
      break;
    }
  }
  assert.equal(await cursorOf(topic, "mail"), 4);
  assert.equal(consumer.committed, 4);
});

test("commits are sent every so many items, or by hand alone", async () => {
  const topic = await topicOf(7);
  const seen: number[] = [];
  for await (const _ of client.consumer(topic, "often", { wait_ms: 0, commitEvery: 3 })) seen.push(await cursorOf(topic, "often"));
  assert.deepEqual(seen, [0, 0, 0, 3, 3, 3, 6]);
  assert.deepEqual(await consume(topic, "by-hand", { commitEvery: 0 }), [1, 2, 3, 4, 5, 6, 7]);
  assert.equal(await cursorOf(topic, "by-hand"), 0);
});

test("a waiting loop commits what it has handed out and receives what is appended", async () => {
  const topic = await topicOf(2);
  const stop = new AbortController();
  const found: unknown[] = [];
  const reading = (async () => {
    for await (const item of client.consumer(topic, "live", { signal: stop.signal })) {
      found.push(item.type === "record" && item.record.data);
    }
  })();
  while ((await client.listConsumers(topic)).consumers[0]?.seq !== 2) await new Promise((resolve) => setTimeout(resolve, 10));
  await client.append(topic, 3);
  while ((await cursorOf(topic, "live")) !== 3) await new Promise((resolve) => setTimeout(resolve, 10));
  stop.abort(new Error("enough"));
  await assert.rejects(reading, /enough/);
  assert.deepEqual(found, [1, 2, 3]);
});

test("a loop whose connections break hands everything out once and commits it", async () => {
  const topic = await topicOf(200);
  await using proxy = await FaultProxy.start(server.port, ["refuse", "cut-before-answer", "cut-in-answer", "hang"]);
  const faulty = new TopicsClient({ url: proxy.url, timeoutMs: 500 });
  const cutting = setInterval(() => proxy.cut(), 15);
  const found = await consume(topic, "faulty", { limit: 10, commitEvery: 5 }, faulty).finally(() => clearInterval(cutting));
  faulty.close();
  assert.deepEqual(found, Array.from({ length: 200 }, (_, index) => index + 1));
  assert.equal(await cursorOf(topic, "faulty"), 200);
});

test("a loop outlives a crash of the server", async () => {
  await using own = await TestServer.start();
  const reader = new TopicsClient({ url: own.url });
  await reader.putTopic("log", { durability: "fsync" });
  await reader.appendMany("log", [{ data: 1 }, { data: 2 }]);
  const consumer = reader.consumer<number>("log", "survivor", { wait_ms: 500 });
  const found = take(3, (async function* () {
    for await (const item of consumer) if (item.type === "record") yield item.record.data;
  })());
  while (consumer.committed !== 2) await new Promise((resolve) => setTimeout(resolve, 10));
  await own.end("SIGKILL");
  const appended = reader.append("log", 3);
  await own.start();
  await appended;
  assert.deepEqual(await found, [1, 2, 3]);
  assert.equal((await reader.getConsumer("log", "survivor")).seq, 2);
  reader.close();
});

test("a topic that was created again is reported and consumed from its beginning", async () => {
  const topic = await topicOf(5);
  const found: unknown[] = [];
  for await (const item of client.consumer(topic, "again", { wait_ms: 0, limit: 2 })) {
    found.push(item.type === "record" ? item.record.data : item.tombstone.reason);
    if (found.length === 3) {
      await client.deleteTopic(topic);
      await client.appendMany(topic, [{ data: "new" }, { data: "newer" }]);
    }
  }
  assert.deepEqual(found, [1, 2, 3, 4, "recreated", "new", "newer"]);
  assert.equal(await cursorOf(topic, "again"), 2);
});

test("a missing consumer begins where the loop says", async () => {
  const topic = await topicOf(5);
  assert.deepEqual(await consume(topic, "newest", { last: 2 }), [4, 5]);
  assert.deepEqual(await consume(topic, "later", { from_seq: 3 }), [4, 5]);
  await assert.rejects(consume("missing-topic", "x"), (error) => hasCode(error, "topic_not_found"));
});

test("consumers are created, read, committed, listed and deleted", async () => {
  const topic = await topicOf(3);
  assert.equal((await client.putConsumer(topic, "a", { last: 1 })).created, true);
  assert.equal((await client.putConsumer(topic, "a")).created, false);
  assert.deepEqual((await client.readConsumer(topic, "a")).records.map((record) => record.data), [3]);
  assert.equal((await client.commitConsumer(topic, "a", { seq: 1 })).moved, false);
  assert.equal((await client.commitConsumer(topic, "a", { seq: 1, force: true })).seq, 1);
  await client.putConsumer(topic, "b");
  assert.deepEqual((await client.listConsumers(topic, { page_size: 1 })).consumers.map((one) => one.consumer), ["a"]);
  const names: string[] = [];
  for await (const one of client.listAllConsumers({ prefix: topic, page_size: 1 })) names.push(one.consumer);
  assert.deepEqual(names, ["a", "b"]);
  assert.equal((await client.deleteConsumer(topic, "a")).deleted, true);
  await assert.rejects(client.getConsumer(topic, "a"), (error) => hasCode(error, "consumer_not_found"));
});

test("a consumer of a stream with a slash in its name is addressed with streams", async () => {
  const made = await fetch(`${server.url}/v1/stream/rooms/42`, { method: "PUT", headers: { "content-type": "application/json" }, body: "[1,2]" });
  assert.equal(made.status, 201);
  await client.putConsumer("rooms/42", "reader", { streams: true });
  const read = await client.readConsumer("rooms/42", "reader", { streams: true });
  assert.deepEqual(read.records.map((record) => record.data), [1, 2]);
  assert.equal((await client.commitConsumer("rooms/42", "reader", { seq: 2, streams: true })).lag, 0);
});
