// BullMQ as its users run it: queues and workers of its own library, in one process of Node, against a redis.
//
// Takes the same order on its input as the load generator and prints the same answer. Workers hold as many jobs at once
// as the others claim in a batch, and jobs are removed when they are completed, which is what an acknowledgement does
// elsewhere. Producers run ahead by a few batches a worker, so that no worker waits for a job: BullMQ is spared the
// round trips between the three steps that the others make. A job is counted when its worker has heard that it is done.
import { createRequire } from "node:module";

const { Queue, Worker } = createRequire(process.env.BENCH_NPM_FOLDER + "/")("bullmq");
const AHEAD = 4;

const order = JSON.parse(await new Promise((resolve) => {
  let text = "";
  process.stdin.on("data", (part) => (text += part)).on("end", () => resolve(text));
}));
const [host, port] = order.address.split(":");
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const payload = JSON.parse(order.request);
const options = { removeOnComplete: true, removeOnFail: true };
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const cpu = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };
const milliseconds = () => Number(process.hrtime.bigint()) / 1e6;

async function throughput() {
  let added = 0, done = 0, over = false;
  const most = order.connections * order.records * AHEAD;
  const workers = [];
  for (let number = 0; number < order.connections; number++) {
    const worker = new Worker(order.name, async () => null, { connection, concurrency: order.records });
    worker.on("completed", () => { done++; });
    worker.on("error", fail);
    workers.push(worker);
  }
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  const batch = Array.from({ length: order.records }, () => ({ name: "job", data: payload, opts: options }));
  const producers = Array.from({ length: order.connections }, async () => {
    const queue = new Queue(order.name, { connection });
    while (!over) {
      if (added - done >= most) {
        await new Promise(setImmediate);
        continue;
      }
      added += order.records;
      await queue.addBulk(batch);
    }
    await queue.close();
  });
  await sleep(order.warm_up_s);
  const begun = milliseconds(), cpuBegun = cpu(), doneBegun = done;
  await sleep(order.seconds);
  const seconds = (milliseconds() - begun) / 1000;
  const answer = { records: done - doneBegun, seconds, cpu_s: cpu() - cpuBegun, p50_ms: 0, p99_ms: 0, max_ms: 0 };
  over = true;
  await Promise.all(producers);
  await Promise.all(workers.map((worker) => worker.close()));
  return answer;
}

// One worker that asks for one job after the other, to time the asking.
async function latency() {
  const queue = new Queue(order.name, { connection });
  const worker = new Worker(order.name, undefined, { connection });
  worker.on("error", fail);
  await worker.waitUntilReady();
  const times = [];
  const warm = milliseconds() + order.warm_up_s * 1000, end = warm + order.seconds * 1000;
  let begun = 0, cpuBegun = 0, now = milliseconds();
  while (now < end) {
    await queue.add("job", payload, options);
    const asked = milliseconds();
    const job = await worker.getNextJob("token");
    now = milliseconds();
    if (now >= warm) {
      if (!begun) { begun = asked; cpuBegun = cpu(); }
      times.push(now - asked);
    }
    await job.moveToCompleted(null, "token", false);
    now = milliseconds();
  }
  const seconds = (now - begun) / 1000, cpuUsed = cpu() - cpuBegun;
  await worker.close();
  await queue.close();
  times.sort((one, other) => one - other);
  const quantile = (part) => times[Math.min(times.length - 1, Math.floor(times.length * part))];
  return {
    records: times.length, seconds, cpu_s: cpuUsed, p50_ms: quantile(0.5), p99_ms: quantile(0.99), max_ms: quantile(1),
  };
}

function fail(error) {
  console.error(`bullmq: ${error}`);
  process.exit(1);
}

const answer = order.records === 1 ? await latency() : await throughput();
console.log(JSON.stringify(answer));
process.exit(0);
