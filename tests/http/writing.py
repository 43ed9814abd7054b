"""Every way of writing that clients have, as data, and a server in whose way a test can put something.

The names and the obstacles come from `tests.unit.engine.write_paths`; the calls go over the wire.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import httpx
import pyarrow as pa
from pyspark.sql.types import StringType, StructType
from websockets.exceptions import ConnectionClosed

from tests.http.api.sockets import Socket, open_socket
from tests.http.pressed import PressedServer
from tests.unit.engine.writing_world import Books, books
from topics.consumers.consumer_state import TopicConsumers, consumers_of
from topics.engine.conditional_append import fence_of
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.engine.topic import Topic
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.limits import Limits
from topics.model.topic_config import TRANSACTIONS_TOPIC
from topics.queues.queue_state import find_queue
from topics.spark.connector import sink
from topics.spark.connector.options import write_options
from topics.streams.stream_state import contract_of, stream_of
from topics.system.clock import SystemClock
from topics.testing import FaultPlan, FaultyFileSystem
from topics_client import ApiError, Client, ClientOptions, RetryPolicy

LARGEST = 4096
QUOTA = 32 * LARGEST
SMALL, HUGE = "new", "x" * LARGEST
LONG = "y" * (LARGEST - 2)
TARGET, SOURCE, FORK, ROUTER, JOBS, DEAD, BALLAST = "target", "source", "fork", "router", "jobs", "dead", "ballast"
_LOOKS_MAX = 20_000
_PATIENCE_S = 60.0

Answer = tuple[int, str]
"""A status, 0 where the protocol has none, and the code of a refusal, "" where there is none."""
DONE = ""


class ShiftedClock:
    """The clock of the machine, and the time that a test lets pass besides."""

    def __init__(self) -> None:
        self._machine = SystemClock()
        self.shift_ms = 0

    def now_ms(self) -> int:
        return self._machine.now_ms() + self.shift_ms

    def monotonic(self) -> float:
        return self._machine.monotonic() + self.shift_ms / 1000


class Site:
    """A server with one shard, and the clients a test needs. Leaving the `with` block ends everything."""

    def __init__(self, folder: Path, max_total_bytes: int = 0) -> None:
        self._folder = folder
        self._limits = Limits(max_record_bytes=LARGEST, max_total_bytes=max_total_bytes)
        self.clock = ShiftedClock()
        self.payload = SMALL
        self._socket: Socket | None = None

    def _open(self) -> None:
        self._stack = ExitStack()
        self.fs = FaultyFileSystem(PosixFileSystem())
        made = PressedServer(self._folder, self.fs, self.clock, limits=self._limits)
        self.server = self._stack.enter_context(made)
        self.reconnect()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(4))

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket = None
        self._stack.close()

    def reconnect(self) -> None:
        """From now on requests come over connections that were never used before."""
        # Nothing is encrypted here, and to read the authorities would take longer than everything else.
        client = httpx.Client(base_url=self.server.url, timeout=_PATIENCE_S, verify=False)
        self.http = self._stack.enter_context(client)

    def drain(self) -> None:
        """Returns the first step of a server's shutdown; see `test_write_paths` for open connections."""
        self.server.on_loop(self.server.api.drain)
        self.reconnect()

    def restart(self) -> None:
        self.__exit__()
        self._open()
        self.look(lambda engine: engine.routing.kick())

    # Looking

    def look(self, function: Callable[[Engine], Any]) -> Any:
        return self.server.on_loop(lambda: function(self.server.engine))

    def find(self, name: str) -> Topic | None:
        found: Topic | None = self.look(lambda engine: engine.core.directory.find(name))
        return found

    def books(self, blind: frozenset[str]) -> Books:
        found: Books = self.look(lambda engine: books(engine, blind))
        return found

    def values(self, name: str) -> list[object]:
        """Returns the values that a reader finds; none where the topic cannot be read."""
        topic = self.find(name)
        if topic is None or (topic.guard is not None and topic.guard.hides(topic)):
            return []
        found: list[object] = []
        cursor = 0
        while cursor < topic.head:
            part = self.look(lambda engine: engine.read_now(name, ReadRequest(from_seq=cursor, limit=1000)))  # noqa: B023
            found += [record["data"] for record in part.records()]
            cursor = part.next_from_seq
        return found

    def until(self, reached: Callable[[], object]) -> None:
        """Looks until something is the case, which it must be in the end."""
        for _ in range(_LOOKS_MAX):
            if reached():
                return
            time.sleep(0.001)
        raise AssertionError("it never came to be")

    # Asking

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if content:
            named.setdefault("content-type", "application/json")
        response = self.http.request(method, path, content=content, headers=named)
        return response.status_code, DONE if response.is_success else _word_of(response)

    def must(self, method: str, path: str, body: object = None, **headers: str) -> None:
        status, code = self.ask(method, path, body, **headers)
        assert not code, (method, path, status, code)

    def later(self, call: Callable[[], Answer]) -> Future[Answer]:
        return self._pool.submit(call)

    def post(self, name: str, *values: object, **fields: object) -> Answer:
        return self.ask("POST", f"/v0/topics/{name}", {"records": [{"data": value} for value in values], **fields})

    def open_socket(self) -> None:
        self._socket = self._stack.enter_context(open_socket(self.server.url))

    def publish(self, name: str, *values: object) -> Answer:
        if self._socket is None:
            self.open_socket()
        assert self._socket is not None
        records = [{"data": value} for value in values]
        try:
            self._socket.send({"op": "publish", "topic": name, "records": records, "create": False})
        except ConnectionClosed:
            pass  # Frames sent before that are still to be read.
        frame = self._socket.frame()
        return 0, frame["code"] if frame["op"] == "error" else DONE

    def sink(self, name: str, *values: object) -> Answer:
        """Runs the code of a Spark task, without its retries."""
        options = write_options({"url": self.server.url, "topic": name, "writeId": "w"})
        task = sink.BatchSink(options, StructType().add("data", StringType()))
        step = sink.Step("spark:w", 0, "run")
        batch = pa.RecordBatch.from_pydict({"data": [json.dumps(value) for value in values]})
        impatient = partial(Client, options=ClientOptions(retry=RetryPolicy(deadline_s=0)))
        try:
            with patch.object(sink, "Client", impatient):
                task.commit_all([task.stage_all(iter([batch]), step, 0, 0)])
        except ApiError as error:
            return error.status, error.code
        return 200, DONE

    # The log

    def queued(self) -> int:
        """The number of operations on their way to the log."""
        depth: int = self.look(lambda engine: engine.core.shards[0].queue_depth)
        return depth

    def fail(self) -> None:
        folder = Layout(str(self._folder / "data")).wal
        self.fs.plan = FaultPlan(call=self.fs.calls + 1, lasting=True, within=folder)
        assert self.post("victim", "lost") == (503, "read_only")


@dataclass(frozen=True)
class Way:
    target: str
    prepare: Callable[[Site], None]
    call: Callable[[Site], Answer]
    done: Callable[[Site], bool]
    again: Callable[[Site], Answer] | None = None
    blind: frozenset[str] = frozenset()
    slack_bytes: int = 0

    def try_again(self, site: Site) -> Answer:
        return self.call(site) if self.again is None else self.again(site)


def _word_of(response: httpx.Response) -> str:
    """Why it was refused, in our own word: /v1 has it one level below its own."""
    error = response.json()["error"]
    word: str = (error.get("detail") or {}).get("reason") or error["code"]
    return word


def _topic(name: str) -> Callable[[Site], None]:
    def prepare(site: Site) -> None:
        if site.find(name) is None:
            site.must("PUT", f"/v0/topics/{name}", {})
        site.post(name, "old")

    return prepare


def _stream(name: str) -> Callable[[Site], None]:
    def prepare(site: Site) -> None:
        if site.find(name) is None:
            site.must("PUT", f"/v1/stream/{name}", ["old"])

    return prepare


def _socket(site: Site) -> None:
    _topic(TARGET)(site)
    site.open_socket()


def _has_new(site: Site) -> bool:
    return SMALL in site.values(TARGET)


def _batch(site: Site) -> list[str]:
    return ["first", site.payload]


def _append_to_stream(site: Site, **headers: str) -> Answer:
    return site.ask("POST", f"/v1/stream/{TARGET}", _batch(site), **headers)


def _is_closed(site: Site) -> bool:
    topic = site.find(TARGET)
    state = stream_of(topic) if topic is not None else None
    return state is not None and state.closed


def _is_updated(site: Site) -> bool:
    topic = site.find(TARGET)
    return topic is not None and contract_of(topic).profile.kind == "state-protocol"


def _exists(name: str) -> Callable[[Site], bool]:
    return lambda site: site.find(name) is not None


def _route(site: Site) -> None:
    # As lasting as a deletion, so that the two are answered in their order.
    site.must("PUT", f"/v0/topics/{SOURCE}", {"durability": "fsync"})
    _topic(TARGET)(site)
    site.must("PUT", f"/v0/routers/{ROUTER}", {"source": SOURCE, "dest": TARGET, "guarantee": "exactly_once"})


def _forward(site: Site) -> Answer:
    status, code = site.post(SOURCE, LONG if site.payload == SMALL else site.payload)
    return (status, code) if code else _router_says(site)


def _router_says(site: Site) -> Answer:
    """The final state of the router: caught up, blocked, or gone."""
    found: list[Answer] = []

    def settled() -> bool:
        response = site.http.get(f"/v0/routers/{ROUTER}")
        info = response.json()
        if not response.is_success:
            found.append((response.status_code, info["error"]["code"]))
        elif info["blocked"]:
            found.append((0, info["blocked_by"]))
        elif not info["lag"]:
            found.append((200, DONE))
        return bool(found)

    site.until(settled)
    return found[0]


def _forward_on(site: Site) -> Answer:
    if LONG not in site.values(SOURCE):
        return _forward(site)
    site.look(lambda engine: engine.routing.pump.retry())
    site.until(lambda: LONG in site.values(TARGET))
    return _router_says(site)


def _has_long(name: str) -> Callable[[Site], bool]:
    return lambda site: LONG in site.values(name)


def _job(site: Site, verb: str, **body: object) -> Answer:
    return site.ask("POST", f"/v0/topics/{JOBS}/{verb}", {"node": "a", **body})


def _change_job(site: Site, verb: str) -> Answer:
    return site.ask("POST", f"/v0/topics/{JOBS}/jobs/1/{verb}", {})


def _delayed_job(site: Site) -> None:
    _jobs(claimed=True)(site)
    _job(site, "nack", seqs=_held(site), delay_ms=3_000_000)


def _counters(site: Site) -> dict[str, int]:
    """The counters of the queue, also of a queue that only the engine can reach."""
    topic = site.find(JOBS)
    queue = find_queue(topic) if topic is not None else None
    if queue is None:
        return {"delayed": 1}
    return {"delayed": len(queue.lease_table.delayed), "paused": queue.paused}


def _dying(site: Site) -> None:
    """A job that was given back after all the deliveries it may have: the next claim finds it."""
    for name, config in ((DEAD, {}), (JOBS, {"type": "queue", "max_deliveries": 1, "dead_letter": DEAD})):
        if site.find(name) is None:
            site.must("PUT", f"/v0/topics/{name}", config)
    site.post(JOBS, LONG)
    _job(site, "claim")
    _job(site, "nack", seqs=_held(site))


def _bury(site: Site) -> Answer:
    """The reason why a job stays is in no answer; the claim itself is answered."""
    status, code = _job(site, "claim")
    if code:
        return status, code
    site.until(lambda: not _leaving(site))
    return (200, DONE) if _has_long(DEAD)(site) else (0, "kept")


def _leaving(site: Site) -> bool:
    queue = find_queue(topic) if (topic := site.find(JOBS)) is not None else None
    return queue is not None and bool(queue.lease_table.leaving or queue.lease_table.moving)


def _bury_again(site: Site) -> Answer:
    for _ in range(3):
        site.clock.shift_ms += 60_000
        answer = _bury(site)
        if _has_long(DEAD)(site):
            break
    return answer


def _buried(site: Site) -> None:
    _dying(site)
    assert _bury(site) == (200, DONE)


def _jobs(claimed: bool) -> Callable[[Site], None]:
    def prepare(site: Site) -> None:
        if site.find(JOBS) is None:
            site.must("PUT", f"/v0/topics/{JOBS}", {"type": "queue", "leases_durable": True, "lease_ms": 1000_000})
        site.post(JOBS, "one", "two")
        if claimed:
            _job(site, "claim")

    return prepare


def _leases(site: Site) -> dict[int, int]:
    topic = site.find(JOBS)
    queue = find_queue(topic) if topic is not None else None
    return {lease.seq: lease.deadline for lease in queue.lease_table.leases.values()} if queue is not None else {}


def _held(site: Site) -> list[int]:
    return list(_leases(site)) or [1]


def _extended(site: Site) -> bool:
    return any(deadline > site.clock.now_ms() + 2_000_000 for deadline in _leases(site).values())


_QUEUE_CHANGES = frozenset((f"jobs of {JOBS}",))

_TRANSACTION = "/v0/transactions/t"
_STAGING = frozenset(("names", "bytes", f"topic {TRANSACTIONS_TOPIC}", f"jobs of {TRANSACTIONS_TOPIC}"))
"""The state after a sink whose commit was refused, until it begins again or the time is over."""


def _begin(site: Site) -> None:
    _topic(TARGET)(site)
    site.must("POST", "/v0/transactions", {"id": "t", "sequence": 1})


def _stage(site: Site) -> Answer:
    records = [{"data": value} for value in _batch(site)]
    body = {"sequence": 1, "part": "p", "topic": TARGET, "records": records, "create": False}
    return site.ask("POST", f"{_TRANSACTION}/stage", body)


def _begin_and_stage(site: Site) -> None:
    _begin(site)
    assert _stage(site)[1] == DONE


def _is_staged(site: Site) -> bool:
    found: bool = site.look(lambda engine: bool(engine.transactions.table.open["t"].parts))
    return found


def _topic_with_consumer(site: Site) -> None:
    _topic(TARGET)(site)
    site.must("PUT", f"/v0/topics/{TARGET}/consumers/c", {})


def _consumed(site: Site) -> bool:
    consumers = consumers_of(topic) if (topic := site.find(TARGET)) is not None else None
    return consumers is not None and any(mark.seq for mark in consumers.marks.values())


WAYS: dict[str, Way] = {
    "stage for a transaction": Way(TARGET, _begin, _stage, _is_staged),
    "commit": Way(
        TARGET,
        _begin_and_stage,
        lambda site: site.ask("POST", f"{_TRANSACTION}/commit", {"sequence": 1}),
        _has_new,
    ),
    "append of a batch": Way(
        TARGET, _topic(TARGET), lambda site: site.post(TARGET, *_batch(site), create=False), _has_new
    ),
    "conditional append": Way(
        TARGET,
        _topic(TARGET),
        lambda site: site.post(TARGET, site.payload, create=False, fence="", new_fence="w"),
        _has_new,
    ),
    "set a fence": Way(
        TARGET,
        _topic(TARGET),
        lambda site: site.ask("PUT", f"/v0/topics/{TARGET}/fence", {"new_fence": "w", "fence": ""}),
        lambda site: (topic := site.find(TARGET)) is not None and fence_of(topic) == "w",
    ),
    # Without `create`, which a lone append of the shorter way must not bring: where there is no topic, it is made.
    "lone append": Way(TARGET, _topic(TARGET), lambda site: site.post(TARGET, site.payload), _has_new),
    "lone keyed append": Way(
        TARGET, _topic(TARGET), lambda site: site.post(TARGET, site.payload, idempotency_key="k"), _has_new
    ),
    "keyed append": Way(
        TARGET,
        _topic(TARGET),
        lambda site: site.post(TARGET, *_batch(site), create=False, idempotency_key="k"),
        _has_new,
    ),
    "publish": Way(TARGET, _socket, lambda site: site.publish(TARGET, *_batch(site)), _has_new),
    "Spark sink": Way(TARGET, _topic(TARGET), lambda site: site.sink(TARGET, *_batch(site)), _has_new, blind=_STAGING),
    "append to a stream": Way(TARGET, _stream(TARGET), _append_to_stream, _has_new),
    "append by a producer": Way(
        TARGET,
        _stream(TARGET),
        lambda site: _append_to_stream(site, producer_id="p", producer_epoch="0", producer_seq="0"),
        _has_new,
    ),
    "close": Way(
        TARGET, _stream(TARGET), lambda site: site.ask("POST", f"/v1/stream/{TARGET}", stream_closed="true"), _is_closed
    ),
    "update of a profile": Way(
        TARGET,
        _stream(TARGET),
        lambda site: site.ask("POST", f"/v1/stream/{TARGET}/_profile", {"profile": {"kind": "state-protocol"}}),
        _is_updated,
    ),
    "fork": Way(
        SOURCE,
        _stream(SOURCE),
        lambda site: site.ask("PUT", f"/v1/stream/{FORK}", stream_forked_from=f"/v1/stream/{SOURCE}"),
        _exists(FORK),
    ),
    "fork with first records": Way(
        SOURCE,
        _stream(SOURCE),
        lambda site: site.ask("PUT", f"/v1/stream/{FORK}", _batch(site), stream_forked_from=f"/v1/stream/{SOURCE}"),
        _exists(FORK),
    ),
    "create a stream with a body": Way(
        TARGET,
        lambda site: None,
        lambda site: site.ask("PUT", f"/v1/stream/{TARGET}", _batch(site)),
        _exists(TARGET),
    ),
    "forward": Way(
        TARGET,
        _route,
        _forward,
        _has_long(TARGET),
        again=_forward_on,
        blind=frozenset((f"topic {SOURCE}", "bytes", "staged bytes")),
        slack_bytes=LARGEST,
    ),
    "dead letter": Way(DEAD, _dying, _bury, _has_long(DEAD), again=_bury_again, blind=_QUEUE_CHANGES),
    "redrive": Way(
        JOBS, _buried, lambda site: site.ask("POST", f"/v0/topics/{JOBS}/redrive", {"max": 1}), _has_long(JOBS)
    ),
    "ack": Way(
        JOBS,
        _jobs(claimed=True),
        lambda site: _job(site, "ack", seqs=_held(site)),
        lambda site: "one" not in site.values(JOBS),
    ),
    "nack": Way(
        JOBS,
        _jobs(claimed=True),
        lambda site: _job(site, "nack", seqs=_held(site)),
        lambda site: "one" in site.values(JOBS) and not _leases(site),
    ),
    "extend": Way(
        JOBS, _jobs(claimed=True), lambda site: _job(site, "extend", seqs=_held(site), lease_ms=3_000_000), _extended
    ),
    "cancel a job": Way(
        JOBS,
        _jobs(claimed=True),
        lambda site: _change_job(site, "cancel"),
        lambda site: "one" not in site.values(JOBS),
    ),
    "release a job": Way(
        JOBS,
        _jobs(claimed=True),
        lambda site: _change_job(site, "release"),
        lambda site: "one" in site.values(JOBS) and not _leases(site),
    ),
    "promote a job": Way(
        JOBS, _delayed_job, lambda site: _change_job(site, "promote"), lambda site: not _counters(site)["delayed"]
    ),
    "pause": Way(
        JOBS,
        _jobs(claimed=True),
        lambda site: site.ask("PUT", f"/v0/topics/{JOBS}/queue", {"paused": True}),
        lambda site: bool(_counters(site).get("paused")),
    ),
    "claim": Way(JOBS, _jobs(claimed=False), lambda site: _job(site, "claim"), lambda site: bool(_leases(site))),
    "create a consumer": Way(
        TARGET, _topic(TARGET), lambda site: site.ask("PUT", f"/v0/topics/{TARGET}/consumers/c", {"last": 0}), _consumed
    ),
    "commit of a consumer": Way(
        TARGET,
        _topic_with_consumer,
        lambda site: site.ask("POST", f"/v0/topics/{TARGET}/consumers/c/commit", {"seq": 1}),
        _consumed,
    ),
    "delete a consumer": Way(
        TARGET,
        _topic_with_consumer,
        lambda site: site.ask("DELETE", f"/v0/topics/{TARGET}/consumers/c"),
        lambda site: (topic := site.find(TARGET)) is not None and not (consumers_of(topic) or TopicConsumers()).marks,
    ),
    "create a schedule": Way(
        TARGET,
        _topic(TARGET),
        lambda site: site.ask("PUT", "/v0/schedules/s", {"topic": TARGET, "cron": "0 0 1 1 *"}),
        lambda site: bool(site.look(lambda engine: engine.schedules.count)),
    ),
    "delete records": Way(
        TARGET,
        _topic(TARGET),
        lambda site: site.ask("POST", f"/v0/topics/{TARGET}/delete", {"before_seq": 1_000_000}),
        lambda site: not site.values(TARGET),
    ),
    "change the config": Way(
        TARGET,
        _topic(TARGET),
        lambda site: site.ask("PUT", f"/v0/topics/{TARGET}", {"ttl_ms": 10**9}),
        lambda site: (topic := site.find(TARGET)) is not None and topic.config.ttl_ms == 10**9,
    ),
    "drop": Way(
        TARGET,
        _topic(TARGET),
        lambda site: site.ask("DELETE", f"/v0/topics/{TARGET}"),
        lambda site: site.ask("GET", f"/v0/topics/{TARGET}") == (404, "topic_not_found"),
    ),
}
