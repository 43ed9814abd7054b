"""The servers of the HTTP benchmark: our own and its peers, how each is started and stopped.

Every server runs as one process on one core, listens on loopback only, keeps its data in a folder that is removed
afterwards, and is ended by its process id whatever happens.
"""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.install import Missing, bun, debian, new_nats, npm_folder, npm_version, said
from bench.protocols import Nats, Redis, Speaker, Streams, Topics

# Enough priority over other programs, without keeping the kernel's threads from their work.
NICENESS = -15
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20


@dataclass(frozen=True)
class Launch:
    """A process to start."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True)
class Server:
    """A server in one configuration."""

    key: str
    title: str
    # The classes of our server with the same promise as this configuration, or the nearest to it.
    classes: tuple[str, ...]
    speaker: Speaker
    # Installs missing packages and returns the version.
    install: Callable[[], str]
    launch: Callable[[Path, int], Launch]
    # Our server chooses its port and writes it to this file; the others receive theirs.
    port_file: str | None = None
    speaks_http: bool = False
    # The product that the version belongs to.
    product: str = ""
    # Whether its reads are measured: ways to sync make no difference to them.
    reads: bool = True
    # The command that puts load on it, if the load generator cannot: for a peer that is a library and not a protocol.
    client: list[str] | None = None
    client_env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Running:
    pid: int
    address: str
    server: Server


@contextlib.contextmanager
def running(server: Server, core: int | None, *, favoured: bool = False) -> Iterator[Running]:
    """Starts the server on a fresh folder, and yields it once it answers; ends it and removes the folder afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="topics-bench-http-"))
    process: subprocess.Popen[bytes] | None = None
    log = folder / "log"
    try:
        port = 0 if server.port_file else _free_port()
        data = folder / "data"
        data.mkdir()
        launch = server.launch(data, port)
        with log.open("wb") as output:
            process = subprocess.Popen(
                pinned(core, launch.command),
                env={**os.environ, **launch.env},
                cwd=launch.cwd or folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if favoured:
            favour(process.pid)
        yield Running(process.pid, _answering(server, process, data, port, log), server)
    finally:
        if process is not None:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)
        # Pages still on their way to the disk would slow the next server down instead of this one.
        os.sync()


def own_cores() -> tuple[int | None, int | None]:
    """A core for the server and one for its clients; None for both if the machine has only one core."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (None, None)


def pinned(core: int | None, command: list[str]) -> list[str]:
    """The command pinned to one core from its first instruction; it keeps its process id."""
    return command if core is None else ["taskset", "--cpu-list", str(core), *command]


def favour(pid: int, niceness: int = NICENESS) -> None:
    """Raises the priority of the session of a process, where the system allows it.

    This takes processor time from the rest of the machine, so it is done only on request. Linux schedules sessions
    against each other first; raising the priority of the process alone would have no effect.
    """
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    except OSError:
        pass


def _answering(server: Server, process: subprocess.Popen[bytes], data: Path, port: int, log: Path) -> str:
    """The address, once the server answers there."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    trouble: Exception | None = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{server.title} ended at once: {_last_words(log)}")
        address = f"127.0.0.1:{port}" if server.port_file is None else _announced(data / server.port_file)
        if address is not None:
            try:
                server.speaker.make(address, "ready")
                return address
            except OSError as error:
                trouble = error
        time.sleep(0.05)
    raise RuntimeError(f"{server.title} does not answer ({trouble}): {_last_words(log)}")


def _announced(port_file: Path) -> str | None:
    try:
        return port_file.read_text().strip() or None
    except FileNotFoundError:
        return None


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-600:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT_S)
            return
        except subprocess.TimeoutExpired:
            continue


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def redis_version() -> str:
    return said([debian("redis-server", "redis-server"), "--version"]).split("v=")[1].split()[0]


def nats_version(find: Callable[[], str]) -> str:
    return said([find(), "--version"]).split("v")[-1].strip()


def _debian_nats() -> str:
    return debian("nats-server", "nats-server")


def prisma_version() -> str:
    return f"{npm_version('@prisma/streams-server')} on bun {said([bun(), '--version']).strip()}"


def _node_version() -> str:
    if shutil.which("node") is None:
        raise Missing("node is not installed")
    return f"{npm_version('@durable-streams/server')} on node {said(['node', '--version']).strip()}"


def our_version() -> str:
    return said([str(Path(sys.executable).with_name("topics")), "version"]).split()[-1]


def launch_topics(data: Path, port: int) -> Launch:
    env = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(data / "address"), "TOPICS_DATA_DIR": str(data / "topics")}
    return Launch([str(Path(sys.executable).with_name("topics")), "serve"], env)


def launch_redis(fsync: str) -> Callable[[Path, int], Launch]:
    def launch(data: Path, port: int) -> Launch:
        options = {
            "port": str(port), "bind": "127.0.0.1", "dir": str(data), "save": "",
            "appendonly": "yes", "appendfsync": fsync,
            # Rewriting the log is work that the others do not do either, or do in small parts: redis is spared it.
            "auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        return Launch([debian("redis-server", "redis-server"), *flags])

    return launch


def launch_nats(find: Callable[[], str], sync: str | None) -> Callable[[Path, int], Launch]:
    def launch(data: Path, port: int) -> Launch:
        config = data / "nats.conf"
        setting = "" if sync is None else f", sync_interval: {sync}"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{data}"{setting} }}\n')
        return Launch([find(), "-c", str(config)])

    return launch


def launch_prisma(**settings: str) -> Callable[[Path, int], Launch]:
    def launch(data: Path, port: int) -> Launch:
        entry = npm_folder() / "node_modules" / "@prisma" / "streams-server" / "src" / "server.ts"
        env = {"PORT": str(port), "DS_HOST": "127.0.0.1", "DS_ROOT": str(data), **settings}
        return Launch([bun(), str(entry), "--object-store", "local", "--no-auth"], env)

    return launch


def _launch_node(data: Path, port: int) -> Launch:
    script = (
        'import { DurableStreamTestServer } from "@durable-streams/server"; '
        f'await new DurableStreamTestServer({{ host: "127.0.0.1", port: {port}, dataDir: "{data}" }}).start();'
    )
    command = ["node", "--input-type=module", "--eval", script]
    return Launch(command, {"NODE_ENV": "production"}, npm_folder())


BOTH = ("disk", "fsync")

OURS = {
    durability: Server(
        f"topics-{durability}",
        f"topics, class {durability}",
        (durability,),
        Topics(durability),
        our_version,
        launch_topics,
        port_file="address",
        speaks_http=True,
        product="topics",
        reads=durability == "disk",
    )
    for durability in BOTH
}
# The same server by the protocol that the streams servers speak, with its own defaults: class fsync, as theirs.
OURS_V1 = Server(
    "topics-v1",
    "topics, /v1",
    ("fsync",),
    Streams("/v1/stream"),
    our_version,
    launch_topics,
    port_file="address",
    speaks_http=True,
    product="topics",
)


def _redis(fsync: str, durability: str, *, reads: bool) -> Server:
    key, title = f"redis-{fsync}", f"redis {fsync}"
    launch = launch_redis(fsync)
    return Server(key, title, (durability,), Redis(), redis_version, launch, product="redis", reads=reads)


def _nats(
    key: str, title: str, durability: str, find: Callable[[], str], *, sync: str | None = None, reads: bool = True
) -> Server:
    launch, version = launch_nats(find, sync), functools.partial(nats_version, find)
    return Server(
        key, title, (durability,), Nats(), version, launch, product=title.removesuffix(" always"), reads=reads
    )


def _streams(
    key: str,
    title: str,
    version: Callable[[], str],
    launch: Callable[[Path, int], Launch],
    *,
    product: str = "",
) -> Server:
    speaker = Streams("/v1/stream")
    product = product or title
    return Server(key, title, BOTH, speaker, version, launch, speaks_http=True, product=product)


PEERS = (
    _redis("everysec", "disk", reads=True),
    _redis("always", "fsync", reads=False),
    _nats("nats-debian", "NATS (Debian)", "disk", _debian_nats),
    _nats("nats", "NATS", "disk", new_nats),
    _nats("nats-always", "NATS always", "fsync", new_nats, sync="always", reads=False),
    _streams("prisma", "Prisma Streams", prisma_version, launch_prisma()),
    _streams(
        "prisma-64",
        "Prisma Streams, concurrency 64",
        prisma_version,
        launch_prisma(DS_INGEST_CONCURRENCY="64"),
        product="Prisma Streams",
    ),
    _streams("node", "Node Durable Streams", _node_version, _launch_node),
)
