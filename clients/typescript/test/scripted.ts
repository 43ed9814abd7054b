import { createServer, type AddressInfo, type Server, type Socket } from "node:net";

export interface Request {
  first: string;
  headers: Record<string, string>;
  body: string;
}

/** What is done on one connection; it is closed afterwards. */
export type Act = (peer: Peer) => Promise<void>;

/** The server's end of a connection. */
export class Peer {
  /** Resolves when the connection has ended. */
  readonly gone: Promise<void>;
  #buffer = Buffer.alloc(0);
  #ended = false;
  #wake: () => void = () => undefined;

  constructor(
    private readonly socket: Socket,
    private readonly server: ScriptedServer,
  ) {
    this.gone = new Promise((resolve) => socket.once("close", () => resolve()));
    socket.on("error", () => undefined);
    socket.on("data", (data) => {
      this.#buffer = Buffer.concat([this.#buffer, data]);
      this.#wake();
    });
    for (const end of ["end", "close"]) {
      socket.on(end, () => {
        this.#ended = true;
        this.#wake();
      });
    }
  }

  /** The next request, which is also remembered; undefined at the end of the connection. */
  async request(): Promise<Request | undefined> {
    const head = await this.head();
    if (head === undefined) return undefined;
    const length = Number(head.headers["content-length"] ?? "0");
    if (!(await this.#until(() => this.#buffer.length >= length))) return undefined;
    head.body = this.#buffer.subarray(0, length).toString();
    this.#buffer = this.#buffer.subarray(length);
    this.server.requests.push(head);
    return head;
  }

  async head(): Promise<Request | undefined> {
    if (!(await this.#until(() => this.#buffer.includes("\r\n\r\n")))) return undefined;
    const end = this.#buffer.indexOf("\r\n\r\n");
    const [first = "", ...lines] = this.#buffer.subarray(0, end).toString().split("\r\n");
    this.#buffer = this.#buffer.subarray(end + 4);
    const headers = lines.map((line) => [line.slice(0, line.indexOf(":")).toLowerCase(), line.slice(line.indexOf(":") + 1).trim()]);
    return { first, headers: Object.fromEntries(headers) as Record<string, string>, body: "" };
  }

  send(data: Buffer | string): void {
    this.socket.write(data);
  }

  /** Leaves without a goodbye. */
  reset(): void {
    this.socket.resetAndDestroy();
  }

  async #until(reached: () => boolean): Promise<boolean> {
    while (!reached()) {
      if (this.#ended) return false;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    return true;
  }
}

/** A server that does what it is told: one act for each connection, then it refuses. */
export class ScriptedServer {
  readonly requests: Request[] = [];
  connections = 0;
  readonly #sockets = new Set<Socket>();

  private constructor(
    private readonly server: Server,
    private readonly acts: Act[],
  ) {}

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  static async start(acts: Act[]): Promise<ScriptedServer> {
    const server = createServer();
    const scripted = new ScriptedServer(server, [...acts]);
    server.on("connection", (socket) => scripted.#play(socket));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return scripted;
  }

  #play(socket: Socket): void {
    const act = this.acts.shift();
    if (act === undefined) return void socket.resetAndDestroy();
    this.connections += 1;
    this.#sockets.add(socket);
    socket.on("close", () => this.#sockets.delete(socket));
    void act(new Peer(socket, this)).finally(() => socket.end());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.server.close(resolve));
  }
}
