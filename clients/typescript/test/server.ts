import { spawn, type ChildProcess } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, connect, type AddressInfo, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A real server in a folder of its own, which can be killed and started again. */
export class TestServer {
  #child: ChildProcess | undefined;

  private constructor(
    readonly folder: string,
    readonly port: number,
    private readonly settings: Record<string, string>,
  ) {}

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  static async start(settings: Record<string, string> = {}): Promise<TestServer> {
    const folder = await mkdtemp(join(tmpdir(), "topics-ts-"));
    const server = new TestServer(folder, await freePort(), settings);
    await server.start();
    return server;
  }

  async start(): Promise<void> {
    const python = process.env.TOPICS_PYTHON;
    if (python === undefined) throw new Error("TOPICS_PYTHON names the Python that has topics");
    const env = { ...process.env, TOPICS_PORT: String(this.port), TOPICS_DATA_DIR: this.folder, TOPICS_PIPELINE: "off", TOPICS_LOG_LEVEL: "error", ...this.settings };
    this.#child = spawn(python, ["-m", "topics", "serve"], { env, stdio: "ignore" });
    for (let tries = 0; tries < 600; tries++) {
      if (this.#child.exitCode !== null) throw new Error(`the server ended with ${this.#child.exitCode}`);
      const response = await fetch(`${this.url}/v0/ready`).catch(() => undefined);
      if (response?.ok) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error("the server did not become ready");
  }

  /** Ends the process: SIGKILL is a crash. */
  async end(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#child;
    if (child === undefined || child.exitCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await ended;
    this.#child = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
    await rm(this.folder, { recursive: true, force: true });
  }
}

export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** What a fault proxy does with one connection. */
export type Fault = "pass" | "refuse" | "cut-before-answer" | "cut-in-answer" | "hang";

/** A TCP proxy that breaks connections on purpose: one fault for each new connection, then it passes everything. */
export class FaultProxy {
  readonly #sockets = new Set<Socket>();
  connections = 0;

  private constructor(
    private readonly server: Server,
    private readonly target: number,
    private readonly faults: Fault[],
  ) {}

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  static async start(target: number, faults: Fault[]): Promise<FaultProxy> {
    const server = createServer();
    const proxy = new FaultProxy(server, target, [...faults]);
    server.on("connection", (socket) => proxy.#serve(socket));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  /** Breaks every connection that is open now. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  #serve(socket: Socket): void {
    this.connections += 1;
    const fault = this.faults.shift() ?? "pass";
    this.#sockets.add(socket);
    socket.on("error", () => undefined).on("close", () => this.#sockets.delete(socket));
    if (fault === "refuse") return void socket.destroy();
    const upstream = connect(this.target, "127.0.0.1");
    upstream.on("error", () => socket.destroy()).on("close", () => socket.destroy());
    socket.on("close", () => upstream.destroy());
    socket.on("data", (data) => upstream.write(data));
    upstream.on("data", (data) => {
      // The server has carried the request out; its answer is lost.
      if (fault === "cut-before-answer") socket.destroy();
      else if (fault === "cut-in-answer") socket.write(data.subarray(0, data.length / 2), () => socket.destroy());
      else if (fault === "pass") socket.write(data);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

let topics = 0;

/** A topic name that no other test uses. */
export function topicName(): string {
  topics += 1;
  return `t${process.pid}-${topics}`;
}

/** The first items of an iteration. */
export async function take<T>(count: number, items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  if (count === 0) return found;
  for await (const item of items) {
    found.push(item);
    if (found.length === count) break;
  }
  return found;
}
