// The public suite, as vitest runs it: the package's own command would not find a test below node_modules.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: process.env.STREAMS_URL, longPollTimeoutMs: 30000, subscriptions: true });
