import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { RetryJob, TopicsClient, hasCode } from "topics-client";
import { FaultProxy, TestServer, topicName } from "./server.js";

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

test("every job is handled once and then gone", async () => {
  const queue = topicName();
  await client.putTopic(queue, { type: "queue" });
  await client.appendMany(queue, Array.from({ length: 40 }, (_, data) => ({ data })));
  const done: number[] = [];
  const worker = client.worker<number>(queue, async (job) => {
    done.push(job.data);
    if (done.length === 40) worker.stop();
  }, { concurrency: 4 });
  await worker.run();
  assert.deepEqual(done.sort((a, b) => a - b), Array.from({ length: 40 }, (_, data) => data));
  assert.equal((await client.getTopic(queue)).count, 0);
});

test("a failed job comes again after its delay and goes to the dead-letter topic in the end", async () => {
  const queue = topicName();
  await client.putTopic(queue, { type: "queue", max_deliveries: 2, dead_letter: `${queue}-failed` });
  await client.appendMany(queue, [{ data: "flaky" }, { data: "broken" }]);
  const tries: string[] = [];
  const errors: unknown[] = [];
  const worker = client.worker<string>(queue, (job) => {
    tries.push(job.data);
    if (job.data === "broken") throw new Error("broken");
    if (job.deliveries === 1) throw new RetryJob(10);
  }, { retryMinMs: 10, idleMs: 20, onError: (error) => errors.push(error) });
  const running = worker.run();
  while ((await client.getTopic(queue)).count > 0) await new Promise((resolve) => setTimeout(resolve, 20));
  worker.stop();
  await running;
  assert.deepEqual([...tries].sort(), ["broken", "broken", "flaky", "flaky"]);
  assert.equal(errors.length, 2);
  const [letter] = (await client.diff(`${queue}-failed`)).records;
  assert.equal(letter?.data, "broken");
  assert.equal((letter?.meta as Record<string, string>)["$dead_letter_reason"], "Error: broken");
  assert.equal((await client.redrive(queue)).moved, 1);
});

test("a lease is extended while a handler runs", async () => {
  const queue = topicName();
  await client.putTopic(queue, { type: "queue" });
  await client.append(queue, 1);
  let deliveries = 0;
  const handler = async () => {
    deliveries += 1;
    await new Promise((resolve) => setTimeout(resolve, 900));
  };
  const workers = [1, 2].map(() => client.worker(queue, handler, { lease_ms: 300, idleMs: 20 }));
  const running = workers.map((worker) => worker.run());
  while ((await client.getTopic(queue)).count > 0) await new Promise((resolve) => setTimeout(resolve, 20));
  workers.forEach((worker) => worker.stop());
  await Promise.all(running);
  assert.equal(deliveries, 1);
});

test("the jobs of a worker survive broken connections", async () => {
  const queue = topicName();
  await client.putTopic(queue, { type: "queue", lease_ms: 500 });
  await client.appendMany(queue, Array.from({ length: 30 }, (_, data) => ({ data })));
  await using proxy = await FaultProxy.start(server.port, ["refuse", "cut-before-answer", "cut-in-answer"]);
  const faulty = new TopicsClient({ url: proxy.url });
  const done = new Set<number>();
  const worker = faulty.worker<number>(queue, (job) => void done.add(job.data), { concurrency: 2, lease_ms: 500, idleMs: 20 });
  const running = worker.run();
  while ((await client.getTopic(queue)).count > 0) await new Promise((resolve) => setTimeout(resolve, 20));
  worker.stop();
  await running;
  assert.equal(done.size, 30);
  faulty.close();
});

test("a worker ends with an error when its queue is missing", async () => {
  await assert.rejects(client.worker("missing-queue", () => undefined).run(), (error) => hasCode(error, "topic_not_found"));
});

test("leases are listed, and a fenced ack of an old lease is skipped", async () => {
  const queue = topicName();
  await client.putTopic(queue, { type: "queue" });
  await client.append(queue, 1);
  const first = (await client.claim(queue, "a")).claimed[0]!;
  assert.equal((await client.listLeases(queue)).leases[0]?.node, "a");
  await client.nack(queue, "a", [1], { lease_ids: [first.lease_id] });
  const second = (await client.claim(queue, "a")).claimed[0]!;
  assert.deepEqual((await client.ack(queue, "a", [1], { lease_ids: [first.lease_id] })).skipped, [1]);
  assert.equal((await client.extend(queue, "a", [1], 60_000, { lease_ids: [second.lease_id] })).extended, 1);
  assert.equal((await client.ack(queue, "a", [1], { lease_ids: [second.lease_id] })).acked, 1);
});
