import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ApiError, ClosedError, ConnectionError, TopicsClient, hasCode } from "topics-client";
import { FaultProxy, TestServer, freePort, take, topicName, type Fault } from "./server.js";

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

test("a topic is created, described, listed and deleted", async () => {
  const topic = topicName();
  assert.equal((await client.putTopic(topic, { durability: "fsync", cap_records: 5 })).created, true);
  const state = await client.getTopic(topic);
  assert.equal(state.config.cap_records, 5);
  assert.equal(state.head_seq, 0);
  const names: string[] = [];
  for await (const one of client.listAllTopics({ prefix: topic, page_size: 1 })) names.push(one.topic);
  assert.deepEqual(names, [topic]);
  assert.equal((await client.deleteTopic(topic)).deleted, true);
  assert.equal(await client.hasTopic(topic), false);
});

test("appended records are read back with tag, node and meta", async () => {
  const topic = topicName();
  await client.append(topic, { id: 1 }, { tag: "first", node: "shop", meta: { trace: "z9" } });
  const batch = await client.appendMany(topic, [{ data: "two" }, { data: null, tag: "third" }]);
  assert.deepEqual(batch.seqs, [2, 3]);
  const found = await client.diff<unknown>(topic, { include_tags: true });
  assert.deepEqual(found.records.map((record) => record.data), [{ id: 1 }, "two", null]);
  assert.deepEqual([found.records[0]?.$tag, found.records[0]?.$node, found.records[0]?.meta], ["first", "shop", { trace: "z9" }]);
  assert.equal(found.caught_up, true);
});

test("an idempotency key appends once and refuses other records", async () => {
  const topic = topicName();
  const first = await client.append(topic, 1, { idempotency_key: "k" });
  const again = await client.append(topic, 1, { idempotency_key: "k" });
  assert.deepEqual([again.first_seq, again.deduped], [first.first_seq, true]);
  await assert.rejects(client.append(topic, 2, { idempotency_key: "k" }), (error) => hasCode(error, "idempotency_conflict"));
});

test("records are deleted by tag and found by search", async () => {
  const topic = topicName();
  await client.appendMany(topic, [{ data: { text: "red fox" }, tag: "a" }, { data: { text: "blue bird" }, tag: "b" }]);
  assert.equal((await client.deleteRecords(topic, { match: "a" })).deleted, 1);
  assert.deepEqual((await client.diff(topic)).records.map((record) => record.$seq), [2]);
  await assert.rejects(client.search(topic, { q: "bird" }), (error) => hasCode(error, "invalid_request"));
});

test("a search returns the matching records", async () => {
  const stream = topicName();
  await fetch(`${server.url}/v1/stream/${stream}`, { method: "PUT", headers: { "content-type": "application/json" } });
  const field = (kind: string, name: string) => ({ kind, bindings: [{ version: 1, jsonPointer: `/${name}` }] });
  const fields = { at: { ...field("date", "at"), column: true }, page: { ...field("keyword", "page"), exact: true, prefix: true } };
  const schema = { schema: { type: "object" }, search: { primaryTimestampField: "at", fields } };
  const declared = await fetch(`${server.url}/v1/stream/${stream}/_schema`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(schema) });
  assert.equal(declared.status, 200);
  await client.appendMany(stream, [{ data: { at: 1, page: "hello" } }, { data: { at: 2, page: "other" } }]);
  const found = await client.search(stream, { q: "page:he*", fields: ["page"], track_total: true });
  assert.deepEqual(found.hits.map((hit) => hit.fields), [{ page: "hello" }]);
});

test("a router copies records", async () => {
  const [source, dest] = [topicName(), topicName()];
  await client.putTopic(source);
  await client.putRouter(`${source}-copy`, { source, dest });
  await client.append(source, "copied");
  const [item] = await take(1, client.follow(dest));
  assert.equal(item?.type === "record" && item.record.data, "copied");
  assert.equal((await client.getRouter(`${source}-copy`)).source, source);
  assert.equal((await client.listRouters({ source })).routers.length, 1);
  await client.deleteRouter(`${source}-copy`);
});

test("a follower reports a gap and continues at its cursor", async () => {
  const topic = topicName();
  await client.putTopic(topic, { cap_records: 2 });
  await client.appendMany(topic, [1, 2, 3, 4].map((data) => ({ data })));
  const follower = client.follow<number>(topic, { wait_ms: 0 });
  const items = [];
  for await (const item of follower) items.push(item.type === "record" ? item.record.data : [item.tombstone.gap_from, item.tombstone.gap_to]);
  assert.deepEqual(items, [[1, 2], 3, 4]);
  assert.equal(follower.cursor, 4);
  await client.append(topic, 5);
  const rest = await take(1, client.follow<number>(topic, { from_seq: follower.cursor, epoch: follower.epoch! }));
  assert.equal(rest[0]?.type === "record" && rest[0].record.data, 5);
});

test("a transaction is visible at once, and once", async () => {
  const [invoices, ledger, id] = [topicName(), topicName(), topicName()];
  for (let round = 0; round < 2; round++) {
    const state = await client.transaction(id, 1, async (step) => {
      await step.append(invoices, { id: 1 }, { tag: "paid" });
      await step.appendMany(ledger, [{ data: 5 }, { data: 7 }]);
      if (round === 0) assert.equal(await client.hasTopic(invoices), false);
      assert.equal(step.deduped, round === 1);
    });
    assert.equal(state.state, "committed");
  }
  assert.equal((await client.getTopic(ledger)).count, 2);
  await assert.rejects(client.transaction(id, 2, async (step) => {
    await step.append(ledger, 9);
    throw new Error("no");
  }), /no/);
  assert.equal((await client.getTopic(ledger)).count, 2);
});

test("a producer batches single records and resolves to their seqs", async () => {
  const topic = topicName();
  const producer = client.producer(topic, { lingerMs: 2, batchRecords: 50 });
  const seqs = await Promise.all(Array.from({ length: 120 }, (_, index) => producer.append({ index })));
  await producer.close();
  assert.deepEqual(seqs, Array.from({ length: 120 }, (_, index) => index + 1));
  await assert.rejects(producer.append(1), ClosedError);
});

test("refusals have a code, a status and a detail", async () => {
  const error = await client.append("bad name!", 1).then(() => assert.fail(), (one: unknown) => one);
  assert.ok(error instanceof ApiError);
  assert.deepEqual([error.status, error.code], [400, "invalid_request"]);
  await assert.rejects(client.diff("missing-topic"), (one) => hasCode(one, "topic_not_found") && one.detail.topic === "missing-topic");
});

for (const fault of ["refuse", "cut-before-answer", "cut-in-answer", "hang"] satisfies Fault[]) {
  test(`an append is carried out once when its first connections fail: ${fault}`, async () => {
    const topic = topicName();
    await using proxy = await FaultProxy.start(server.port, [fault, fault]);
    const faulty = new TopicsClient({ url: proxy.url, timeoutMs: fault === "hang" ? 300 : 10_000 });
    const answer = await faulty.append(topic, { once: true });
    faulty.close();
    assert.equal(answer.first_seq, 1);
    assert.ok(proxy.connections >= 3);
    assert.equal((await client.getTopic(topic)).count, 1);
  });
}

test("a nack without lease ids is not repeated after a lost answer", async () => {
  const topic = topicName();
  await client.putTopic(topic, { type: "queue" });
  await client.append(topic, 1);
  await client.claim(topic, "w");
  await using proxy = await FaultProxy.start(server.port, ["cut-before-answer"]);
  const faulty = new TopicsClient({ url: proxy.url });
  await assert.rejects(faulty.nack(topic, "w", [1]), (error) => error instanceof ConnectionError && error.maybeDone);
  faulty.close();
});

test("a refused connection is an error that says so", async () => {
  const away = new TopicsClient({ url: `http://127.0.0.1:${await freePort()}`, retry: { deadlineMs: 0 } });
  await assert.rejects(away.health(), (error) => error instanceof ConnectionError && !error.maybeDone);
});

test("close and abort end a call that waits", async () => {
  const topic = topicName();
  await client.putTopic(topic);
  const own = new TopicsClient({ url: server.url });
  const waiting = own.diff(topic, { wait_ms: 20_000 });
  setTimeout(() => own.close(), 20);
  await assert.rejects(waiting, ClosedError);
  const stop = new AbortController();
  const other = client.diff(topic, { wait_ms: 20_000, signal: stop.signal });
  setTimeout(() => stop.abort(new Error("enough")), 20);
  await assert.rejects(other, /enough/);
});

test("an address with a password is refused without repeating it", () => {
  assert.throws(() => new TopicsClient({ url: "http://user:secret@127.0.0.1" }), (error) => error instanceof Error && !error.message.includes("secret"));
});
