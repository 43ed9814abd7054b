// What the client promises whatever the other end does: a server that dies, drips, lies about lengths and is silent.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { ConnectionError, TopicsClient, TopicsError, hasCode, type ClientOptions } from "topics-client";
import { ScriptedServer, type Act } from "./scripted.js";

const APPENDED = { topic: "jobs", first_seq: 1, last_seq: 1, head_seq: 1, count: 1, created: false, deduped: false };
const QUICK = { retry: { backoffMinMs: 1, backoffMaxMs: 10 } };
const ONCE = { retry: { deadlineMs: 0 } };

/** A complete answer, behind which the connection ends: each act is one request, whatever the runtime pools. */
function http(body: unknown, status = "200 OK", ...headers: string[]): Buffer {
  const content = Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body));
  return Buffer.concat([Buffer.from([`HTTP/1.1 ${status}`, `content-length: ${content.length}`, "connection: close", ...headers, "", ""].join("\r\n")), content]);
}

const OK = http(APPENDED);
const changed = (from: string, to: string) => Buffer.from(OK.toString().replace(from, to));

/** Answers a request with these bytes, so many at a time, and leaves. */
function answers(text: Buffer, each = Infinity): Act {
  return async (peer) => {
    if ((await peer.request()) === undefined) return;
    for (let start = 0; start < text.length; start += each) {
      peer.send(text.subarray(start, start + each));
      if (each < text.length) await new Promise((resolve) => setImmediate(resolve));
    }
  };
}
const dies: Act = async (peer) => void (await peer.request());
const resets: Act = async (peer) => {
  await peer.request();
  peer.reset();
};
const hangs: Act = async (peer) => {
  await peer.request();
  await peer.gone;
};

async function against<R>(acts: Act[], options: ClientOptions, scene: (client: TopicsClient, server: ScriptedServer) => Promise<R>): Promise<R> {
  await using server = await ScriptedServer.start(acts);
  const client = new TopicsClient({ url: server.url, ...options });
  try {
    return await scene(client, server);
  } finally {
    client.close();
  }
}

const broken = (error: unknown) => error instanceof ConnectionError && error.maybeDone;

const LOSSES: Record<string, Act> = { dies, resets, "half a head": answers(OK.subarray(0, 20)), "half a body": answers(OK.subarray(0, -1)) };
for (const [name, loss] of Object.entries(LOSSES)) {
  test(`an append whose answer was lost is sent again as it was: ${name}`, () =>
    against([loss, loss, answers(OK)], QUICK, async (client, server) => {
      assert.equal((await client.append("jobs", { a: 1 })).last_seq, 1);
      assert.equal(server.requests.length, 3);
      const bodies = new Set(server.requests.map((request) => request.body));
      assert.equal(bodies.size, 1);
      const { idempotency_key, ...rest } = JSON.parse([...bodies][0]!) as { idempotency_key: string };
      assert.equal(idempotency_key.length, 20);
      assert.deepEqual(rest, { idempotency_check: true, records: [{ data: { a: 1 } }] });
    }));

  test(`a claim whose answer was lost is not sent again: ${name}`, () =>
    against([loss, answers(OK)], QUICK, async (client, server) => {
      await assert.rejects(client.claim("jobs", "w"), broken);
      assert.equal(server.requests.length, 1);
    }));
}

test("silence is a failure", () =>
  against([hangs], { ...ONCE, timeoutMs: 100 }, async (client, server) => {
    await assert.rejects(client.append("jobs", 1), (error) => broken(error) && (error as Error).message === `${server.url}: no answer in time`);
  }));

test("an answer may drip", () => {
  const body = JSON.stringify(APPENDED);
  const chunks = body.match(/.{1,10}/gs)!.map((part) => `${part.length.toString(16)};ext=1\r\n${part}\r\n`).join("");
  const chunked = Buffer.from(`HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n${chunks}0\r\n\r\n`);
  const packed = http(gzipSync(body), "200 OK", "content-encoding: gzip");
  const ended = Buffer.from(`HTTP/1.0 200 OK\r\n\r\n${body}`);
  const forms = [OK, chunked, packed, ended];
  return against(forms.map((form) => answers(form, 7)), ONCE, async (client) => {
    for (const _ of forms) assert.equal((await client.append("jobs", 1)).last_seq, 1);
  });
});

const LIES: Record<string, Buffer> = {
  "too short": changed("content-length: ", "content-length: 1"),
  "two lengths": changed("\r\n\r\n", "\r\ncontent-length: 5\r\n\r\n"),
  "length and chunks": changed("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n"),
  "a negative length": changed("content-length: ", "content-length: -"),
  "a bad chunk": Buffer.from("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
  "cut chunks": Buffer.from("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"),
  "no HTTP": Buffer.from("220 mail.example.com ESMTP\r\n\r\n"),
  "an endless head": Buffer.from(`HTTP/1.1 200 OK\r\nx: ${"y".repeat(100_000)}`),
};
for (const [name, lie] of Object.entries(LIES)) {
  test(`a lie is a broken connection and never an answer: ${name}`, () =>
    against([answers(lie)], ONCE, (client) => assert.rejects(client.append("jobs", 1), broken)));
}

test("a cut compressed answer is never an answer", () =>
  // Some runtimes hand out the text that was there, which is no JSON.
  against([answers(http(gzipSync(JSON.stringify(APPENDED)).subarray(0, 40), "200 OK", "content-encoding: gzip"))], ONCE, (client) => assert.rejects(client.append("jobs", 1), TopicsError)));

test("an answer that is no JSON is an error and is not sent again", () =>
  against([answers(http(Buffer.from("<html>")))], QUICK, async (client, server) => {
    await assert.rejects(client.health(), /not JSON/);
    assert.equal(server.requests.length, 1);
  }));

test("a refusal before the body was taken is reported", () => {
  const refused = http({ error: { code: "payload_too_large", message: "no" } }, "413 Too Large");
  const act: Act = async (peer) => {
    await peer.head();
    peer.send(refused);
    await peer.gone;
  };
  return against([act], ONCE, (client) => assert.rejects(client.append("jobs", "x".repeat(20_000_000)), (error) => hasCode(error, "payload_too_large") || broken(error)));
});

test("a redirect is not followed, because the key would go along", () =>
  against([answers(http({}, "302 Found", "location: http://127.0.0.1:9/"))], { ...ONCE, apiKey: "secret" }, async (client, server) => {
    await assert.rejects(client.append("jobs", 1), ConnectionError);
    assert.equal(server.requests.length, 1);
  }));

test("a server that asks for a pause is asked again", () => {
  const busy = http({ error: { code: "throttled", message: "slow down", detail: { retry_after_ms: 30 } } }, "429 Too Many Requests");
  return against([answers(busy), answers(OK)], QUICK, async (client, server) => {
    assert.equal((await client.append("jobs", 1)).last_seq, 1);
    assert.equal(server.requests.length, 2);
  });
});

function page(...seqs: number[]): Buffer {
  const records = seqs.map((seq) => ({ $seq: seq, $ts: 1, data: seq }));
  return http({ topic: "jobs", records, next_from_seq: seqs.at(-1), head_seq: 9, earliest_seq: 1, caught_up: seqs.at(-1) === 5, lag: 0 });
}

test("a follower continues where it was", () =>
  against([answers(page(1, 2)), answers(page(3, 4).subarray(0, -5)), resets, answers(page(3, 4)), answers(page(5))], QUICK, async (client, server) => {
    const found: unknown[] = [];
    for await (const item of client.follow("jobs", { wait_ms: 0 })) found.push(item.type === "record" && item.record.$seq);
    assert.deepEqual(found, [1, 2, 3, 4, 5]);
    assert.deepEqual(server.requests.map((request) => (JSON.parse(request.body) as { from_seq: number }).from_seq), [0, 2, 2, 2, 4]);
  }));

const SESSION = http({ wid: "w", stream_url: "/v0/watch/w", session_ttl_ms: 1, topics: { a: { from_seq: 0, head_seq: 9, earliest_seq: 1, epoch: 7 } } });
const STREAM = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
const CHUNKED = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const event = (name: string, id: string, data: object) => `id: ${id}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
const record = (seq: number) => event("record", `x${seq}`, { topic: "a", records: [{ $seq: seq, $ts: 1, data: seq }], to_seq: seq });
const chunk = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`;

test("a watcher continues behind the last whole event", () => {
  /** Sends the event behind the last one that arrived, and then breaks, or ends. */
  const resumed = (end: string): Act => async (peer) => {
    const request = await peer.request();
    const last = Number(request?.headers["last-event-id"]?.slice(1));
    peer.send(CHUNKED + chunk(record(last + 1)));
    peer.send(end);
  };
  const gone = chunk(event("topic-deleted", "x9", { topic: "a", head_seq: 3, reason: "deleted" })) + "0\r\n\r\n";
  const cut = Buffer.from(STREAM + record(1) + record(2).slice(0, -1));
  const acts = [answers(SESSION, 5), answers(cut, 5), resets, resumed("zz\r\n"), resumed(chunk(record(5).slice(0, -3))), resumed(gone)];
  return against(acts, QUICK, async (client, server) => {
    const found: unknown[] = [];
    for await (const item of client.watch("a")) found.push(item.type === "record" ? item.record.$seq : item.type);
    // A lie about a chunk may take along the event before it, which is then sent again.
    assert.deepEqual(found, [...Array.from({ length: found.length - 1 }, (_, index) => index + 1), "topic-deleted"]);
    assert.ok(found.length > 2);
    assert.deepEqual(server.requests.slice(1, 4).map((request) => request.headers["last-event-id"]), [undefined, "x1", "x1"]);
  });
});

test("closing the client ends whoever waits in a watch or a follower", () =>
  against([hangs, hangs], QUICK, async (client, server) => {
    const loops = [client.follow("jobs"), client.watch("a")].map(async (loop: AsyncIterable<unknown>) => {
      for await (const _ of loop) assert.fail();
    });
    while (server.requests.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
    client.close();
    client.close();
    for (const loop of loops) await assert.rejects(loop, { name: "ClosedError" });
  }));
