// Keeps rows by way of the official package for the state protocol, over a stream of ours that checks every change.
// Prints what it saw as one line of JSON.
import { DurableStream, stream } from "@durable-streams/client";
import { createStateSchema, MaterializedState } from "@durable-streams/state";
import { createStreamDB } from "@durable-streams/state/db";

const [base, live] = process.argv.slice(2);
const url = `${base}/v1/stream/state/${live}`;
const seen = {};
const anything = { "~standard": { version: 1, vendor: "tests", validate: (value) => ({ value }) } };
const schema = createStateSchema({
  users: { schema: anything, type: "user", primaryKey: "id" },
  messages: { schema: anything, type: "message", primaryKey: "id" },
});

const handle = await DurableStream.create({ url, contentType: "application/json" });
const profile = { profile: { kind: "state-protocol", touch: { enabled: true } } };
const told = await fetch(`${url}/_profile`, { method: "POST", body: JSON.stringify(profile) });
seen.profile = (await told.json()).profile.kind;

// Events of the package are taken as they are; what is no event of the protocol is refused.
const change = (event) => handle.append(JSON.stringify(event));
await change(schema.users.insert({ value: { id: "1", name: "Ada" } }));
await change(schema.users.insert({ value: { id: "2", name: "Bob" } }));
await change(schema.users.update({ value: { id: "1", name: "Ada L." }, oldValue: { id: "1", name: "Ada" } }));
await change({ headers: { control: "snapshot-end" } });
seen.refused = await change({ hello: "world" }).then(() => "taken", (error) => error.status);

// The plain reader.
const state = new MaterializedState();
for (const event of await (await stream({ url, live: false })).json()) if (event.type) state.apply(event);
seen.materialized = [state.get("user", "1"), state.get("user", "2")];

// The database: what was there, then what comes, then a change of its own that it waits for.
const db = createStreamDB({
  streamOptions: { url, contentType: "application/json" },
  live,
  state: schema,
  actions: ({ db, stream }) => ({
    say: {
      onMutate: (message) => db.collections.messages.insert(message),
      mutationFn: async (message) => {
        const txid = crypto.randomUUID();
        await stream.append(JSON.stringify(schema.messages.insert({ value: message, headers: { txid } })));
        await db.utils.awaitTxId(txid, 30000);
      },
    },
  }),
});
await db.preload();
const users = () => [...db.collections.users.values()].map(({ id, name }) => ({ id, name })).sort((a, b) => (a.id < b.id ? -1 : 1));
seen.preloaded = users();
const txid = crypto.randomUUID();
const removed = { id: "2", name: "Bob" };
await change({ ...schema.users.delete({ key: "2", oldValue: removed }), headers: { operation: "delete", txid } });
await db.utils.awaitTxId(txid, 30000);
seen.followed = users();
await db.actions.say({ id: "m1", text: "hello" }).isPersisted.promise;
seen.said = [...db.collections.messages.values()].map(({ text }) => text);
db.close();

// And whoever waits for the table of messages was touched by it.
const meta = await (await fetch(`${url}/touch/meta?settle=flush`)).json();
seen.settled = meta.settled;
console.log(JSON.stringify(seen));
process.exit(0);
