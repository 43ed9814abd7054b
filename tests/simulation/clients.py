"""The clients of a simulation: they write, read, delete, work and copy, over both protocols, and report their answers
to the oracle. A client whose connection is lost opens another and has no memory of its requests."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

from tests.simulation.network import Lost
from tests.simulation.oracle import Broken, Fate, LogTruth, QueueTruth, Scan, StreamTruth, TransactionTruth, TypedTruth
from topics_client.transport.http1 import ProtocolError, Response

_JSON = "content-type: application/json\r\n"
_TRANSIENT = (408, 429, 500, 503, 507)
"""Status codes with the meaning "not now" or "outcome unknown". 500 is none that the server should give; it is counted
elsewhere."""


class Line(Protocol):
    """A connection, of a simulation or a real one."""

    open: bool

    async def ask(self, method: str, target: str, body: bytes | None, headers: str = "") -> Response:
        """The answer; raises `Lost` or `ProtocolError` where there is none."""
        ...

    def hang_up(self) -> None: ...


class Caller:
    """A client's way to the server: a connection, another when that is lost, and a trace of the requests and
    answers."""

    def __init__(self, name: str, connect: Callable[[], Line], note: Callable[[str], None]) -> None:
        self.name = name
        self.connect, self.note = connect, note
        self._link: Line | None = None

    async def ask(self, method: str, target: str, body: Any = None, headers: str = "") -> Response:
        """The answer; raises `Lost` where there is none."""
        if self._link is None or not self._link.open:
            self._link = self.connect()
        raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = await self._link.ask(method, target, raw, headers + (_JSON if raw is not None else ""))
        except (Lost, ProtocolError):
            self._link.hang_up()
            self._link = None
            self.note(f"{self.name} {method} {target} lost")
            raise Lost from None
        self.note(f"{self.name} {method} {target} {answer.status} {_said(answer)}")
        return answer

    def hang_up(self) -> None:
        """Goes away."""
        if self._link is not None:
            self._link.hang_up()
            self._link = None


def _said(answer: Response) -> str:
    """The part of an answer that time does not change."""
    if not answer.content.startswith(b"{"):
        return answer.content[:60].decode(errors="replace")
    reported = json.loads(answer.content)
    for name in ("performance", "uptime_ms"):
        reported.pop(name, None)
    return json.dumps(reported)[:160]


async def write(caller: Caller, topic: LogTruth, numbers: Callable[[], int], luck: Random) -> None:
    """Appends one record or several, with an idempotency key or without; with one it repeats itself until it knows."""
    values = [numbers() for _ in range(luck.choice((1, 1, 1, 2, 5, 40)))]
    body: dict[str, Any] = {"records": [{"data": value} for value in values]}
    keyed = luck.random() < 0.5
    if keyed:
        body["idempotency_key"] = f"k{values[0]}"
    topic.sending(values)
    for _ in range(4 if keyed else 1):
        try:
            answer = await caller.ask("POST", f"/v0/topics/{topic.name}", body)
        except Lost:
            continue
        if answer.is_success:
            topic.acked(values, json.loads(answer.content)["first_seq"])
            return
        if answer.status not in _TRANSIENT:
            topic.refused(values)
            return
        if not keyed and answer.status in (429, 503):
            topic.refused(values)
            return
        await asyncio.sleep(luck.choice((0.001, 0.02, 0.2)))


async def read(caller: Caller, topic: LogTruth, luck: Random) -> None:
    """Reads a page from somewhere, waiting for it or not."""
    start = luck.choice((0, luck.randrange(1 + max(topic.values, default=0))))
    body = {"from_seq": start, "limit": luck.choice((1, 10, 1000)), "wait_ms": luck.choice((0, 0, 50))}
    deleted_below = topic.deleted_below
    answer = await caller.ask("POST", f"/v0/topics/{topic.name}/diff", body)
    if answer.is_success:
        topic.check_page([(r["$seq"], r["data"]) for r in json.loads(answer.content)["records"]], deleted_below)


async def delete(caller: Caller, topic: LogTruth, luck: Random) -> None:
    head = max(topic.values, default=0)
    before_seq = max(head - luck.choice((0, 5, 50)), 0)
    topic.deleting(min(before_seq, head + 1))
    answer = await caller.ask("POST", f"/v0/topics/{topic.name}/delete", {"before_seq": before_seq})
    if answer.is_success:
        topic.deleted(min(before_seq, json.loads(answer.content)["head_seq"] + 1))


async def scan(caller: Caller, name: str, luck: Random) -> Scan:
    """Everything there is, page by page."""
    records: list[tuple[int, int]] = []
    gaps: list[tuple[int, int, str]] = []
    cursor = 0
    while True:
        answer = await caller.ask(
            "POST", f"/v0/topics/{name}/diff", {"from_seq": cursor, "limit": luck.choice((3, 100, 1000))}
        )
        if answer.status in _TRANSIENT:
            await asyncio.sleep(0.05)
            continue
        if not answer.is_success:
            raise Broken(f"{name}: a read is answered with {answer.status} {answer.content[:200]!r}")
        page = json.loads(answer.content)
        records += [(r["$seq"], r["data"]) for r in page["records"]]
        if (gap := page["tombstone"]) is not None:
            gaps.append((gap["gap_from"], gap["gap_to"], gap["reason"]))
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return Scan(records, gaps, page["head_seq"])


async def produce(caller: Caller, stream: StreamTruth, numbers: Callable[[], int]) -> None:
    """Appends to a stream as its producer, once more and once more until it knows."""
    if stream.pending is None:
        stream.pending = numbers()
    seq = len(stream.acked)
    headers = f"producer-id: p\r\nproducer-epoch: 0\r\nproducer-seq: {seq}\r\n"
    answer = await caller.ask("POST", f"/v1/stream/{stream.name}", b"%d" % stream.pending, headers)
    if answer.is_success:
        stream.acked.append(stream.pending)
        stream.pending = None
    elif answer.status not in _TRANSIENT and (stream.created or answer.status != 404):
        raise Broken(f"{stream.name}: seq {seq} of its only producer: {answer.status} {answer.content[:200]!r}")


async def transact(
    caller: Caller, logs: dict[str, LogTruth], truth: TransactionTruth, numbers: Callable[[], int], luck: Random
) -> None:
    """Writes to several topics at once: stages, and commits, once more while there is no answer."""
    parts = {name: [numbers() for _ in range(luck.choice((1, 3)))] for name in logs}
    truth.made.append(parts)
    for name, values in parts.items():
        logs[name].sending(values)
    path, named = f"/v0/transactions/t{next(iter(parts.values()))[0]}", {"sequence": 1, "attempt": "a"}
    begun = await caller.ask("POST", "/v0/transactions", {"id": path.rpartition("/")[2], **named})
    if not begun.is_success:
        return
    for name, values in parts.items():
        body = {**named, "part": name, "topic": name, "records": [{"data": value} for value in values]}
        if not (await caller.ask("POST", f"{path}/stage", body)).is_success:
            return
    for _ in range(3):
        try:
            answer = await caller.ask("POST", f"{path}/commit", named)
        except Lost:
            continue
        if answer.is_success:
            for placed in json.loads(answer.content)["topics"]:
                logs[placed["topic"]].acked(parts[placed["topic"]], placed["first_seq"])
            return
        if answer.status not in _TRANSIENT:
            return
        await asyncio.sleep(0.02)


async def read_stream(caller: Caller, name: str) -> list[Any]:
    offset, values = "-1", []
    while True:
        answer = await caller.ask("GET", f"/v1/stream/{name}?offset={offset}")
        if answer.status in _TRANSIENT:
            await asyncio.sleep(0.05)
            continue
        if not answer.is_success:
            raise Broken(f"{name}: a read is answered with {answer.status} {answer.content[:200]!r}")
        values += json.loads(answer.content)
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return values


async def work(caller: Caller, queue: QueueTruth, luck: Random) -> None:
    """Claims some jobs, and acknowledges them or gives them back or forgets them."""
    name, done = queue.produced.name, set(queue.done)
    answer = await caller.ask(
        "POST", f"/v0/topics/{name}/claim", {"node": caller.name, "max": luck.choice((1, 5)), "lease_ms": 500}
    )
    if not answer.is_success:
        return
    jobs = json.loads(answer.content)["claimed"]
    queue.check_claimed(job["data"] for job in jobs if job["data"] in done)
    chance = luck.random()
    if not jobs or chance < 0.2:
        return
    body = {"node": caller.name, "seqs": [job["$seq"] for job in jobs], "lease_ids": [job["lease_id"] for job in jobs]}
    if chance < 0.4:
        await caller.ask("POST", f"/v0/topics/{name}/nack", {**body, "delay_ms": luck.choice((0, 100))})
        return
    await _finish(caller, queue, jobs, body)


async def _finish(caller: Caller, queue: QueueTruth, jobs: list[Any], body: dict[str, Any]) -> None:
    queue.maybe_done.update(job["data"] for job in jobs)
    answer = await caller.ask("POST", f"/v0/topics/{queue.produced.name}/ack", body)
    if answer.is_success:
        skipped = set(json.loads(answer.content)["skipped"])
        queue.done.update(job["data"] for job in jobs if job["$seq"] not in skipped)


async def extend(caller: Caller, queue: QueueTruth, luck: Random) -> None:
    """Claims some jobs and asks for more time, or for next to none, before it is done with them or forgets them."""
    name, done = queue.produced.name, set(queue.done)
    answer = await caller.ask("POST", f"/v0/topics/{name}/claim", {"node": caller.name, "max": 2, "lease_ms": 200})
    if not answer.is_success or not (jobs := json.loads(answer.content)["claimed"]):
        return
    queue.check_claimed(job["data"] for job in jobs if job["data"] in done)
    body = {"node": caller.name, "seqs": [job["$seq"] for job in jobs], "lease_ids": [job["lease_id"] for job in jobs]}
    await caller.ask("POST", f"/v0/topics/{name}/extend", {**body, "lease_ms": luck.choice((1, 400, 3000))})
    if luck.random() < 0.5:
        await _finish(caller, queue, jobs, body)


async def redrive(caller: Caller, name: str, luck: Random) -> None:
    """Has dead letters tried again."""
    answer = await caller.ask("POST", f"/v0/topics/{name}/redrive", {"max": luck.choice((1, 5))})
    if not answer.is_success and answer.status not in (404, 409, *_TRANSIENT):
        raise Broken(f"{name}: a redrive is answered with {answer.status} {answer.content[:200]!r}")


async def jobs_left(caller: Caller, names: tuple[str, ...], luck: Random) -> set[int]:
    """The jobs that are in a queue or among its dead letters, of which none may be in both."""
    left: list[int] = []
    for name in names:
        if (await caller.ask("GET", f"/v0/topics/{name}")).status != 404:
            left += [value for _, value in (await scan(caller, name, luck)).records]
    if len(set(left)) < len(left):
        raise Broken(f"{names}: {sorted(v for v in left if left.count(v) > 1)[:5]} are there twice")
    return set(left)


async def check_copies(caller: Caller, source: LogTruth, dest: str, luck: Random) -> None:
    """An exactly-once router's destination has nothing twice, and nothing that was not in the source."""
    copied = [value for _, value in (await scan(caller, dest, luck)).records]
    if len(set(copied)) < len(copied):
        raise Broken(f"{dest}: {sorted(v for v in copied if copied.count(v) > 1)[:5]} were copied twice")
    for value in copied:
        sent = source.sent.get(value)
        if sent is None or sent.fate is Fate.REFUSED:
            raise Broken(f"{dest}: {value} was never in {source.name}")


async def churn(caller: Caller, name: str, numbers: Callable[[], int], luck: Random) -> None:
    """A topic that is made, filled, deleted and made again; it must never hold records of another life of it."""
    match luck.randrange(4):
        case 0:
            await caller.ask("DELETE", f"/v0/topics/{name}")
        case 1:
            config = {"durability": luck.choice(("disk", "fsync", "ephemeral")), "cap_records": luck.choice((None, 5))}
            await caller.ask("PUT", f"/v0/topics/{name}", {k: v for k, v in config.items() if v is not None})
        case _:
            await caller.ask("POST", f"/v0/topics/{name}", {"records": [{"data": numbers()}]})


async def write_typed(caller: Caller, stream: TypedTruth, numbers: Callable[[], int], luck: Random) -> None:
    """Appends entries of the version that the writer knows; too old or too new versions are refused."""
    values = [numbers() for _ in range(luck.choice((1, 3, 300)))]
    stream.sending(values)
    body = [{f"v{stream.version}": value, "k": "x"} for value in values]
    answer = await caller.ask("POST", f"/v1/stream/{stream.name}", body)
    if answer.is_success:
        stream.acked(values)
    elif answer.status not in _TRANSIENT:
        stream.refused(values)


async def update_schema(caller: Caller, stream: TypedTruth) -> None:
    """Makes the next version, in which a member has another name."""
    requested = stream.version + 1
    stream.newest = max(stream.newest, requested)
    answer = await caller.ask("POST", f"/v1/stream/{stream.name}/_schema", schema_update(stream.name, requested))
    if answer.is_success:
        stream.version = max(stream.version, requested)
    elif answer.status == 409:
        # It was created by a request without an answer.
        shown = await caller.ask("GET", f"/v1/stream/{stream.name}/_schema")
        if shown.is_success:
            stream.saw(json.loads(shown.content)["currentVersion"])


def schema_update(name: str, version: int) -> dict[str, Any]:
    member = f"v{version}"
    schema = {"type": "object", "required": [member, "k"], "properties": {member: {"type": "integer"}, "k": {}}}
    update: dict[str, Any] = {"schema": schema}
    if version > 1:
        ops = [{"op": "rename", "from": f"/v{version - 1}", "to": f"/{member}"}]
        head = {"apiVersion": "durable.lens/v1", "schema": name, "from": version - 1, "to": version}
        update["lens"] = {**head, "ops": ops}
    return update


async def read_typed(caller: Caller, stream: TypedTruth) -> list[int]:
    """The entries as the newest version shows them."""
    shown = await caller.ask("GET", f"/v1/stream/{stream.name}/_schema")
    if not shown.is_success:
        raise Broken(f"{stream.name}: its schema is answered with {shown.status} {shown.content[:200]!r}")
    version = json.loads(shown.content)["currentVersion"]
    stream.saw(version)
    values = []
    for entry in await read_stream(caller, stream.name):
        if set(entry) != {f"v{version}", "k"}:
            raise Broken(f"{stream.name}: {entry} is no entry of version {version}")
        values.append(entry[f"v{version}"])
    return values


Scene = Callable[[], Coroutine[Any, Any, None]]


async def repeat(scenes: list[Scene], luck: Random) -> None:
    """A client's life: one thing after the other, with pauses."""
    while True:
        try:
            await luck.choice(scenes)()
        except Lost:
            pass
        await asyncio.sleep(luck.choice((0, 0.001, 0.003, 0.01, 0.2)))
