"""The operations of `bench.cost`: the requests of a round of each.

An operation prepares its topic and its connections, and gives a function that does one round. Requests are made before
they are measured wherever they can be, with the same bytes each time but for keys and seqs.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.cost_client import Place, Talk, in_step
from bench.protocols import Speaker, Streams, Topics, payload, post
from bench.races import text_frame

_MANY = 16
_BATCH = 100
_JOBS = 8
_WATCHED = 250
"""Topics of one event stream."""
_V1 = Streams("/v1/stream")

Round = Callable[[], None]


@dataclass(frozen=True)
class Operation:
    key: str
    title: str
    done: int
    """The number of operations in a round."""
    begin: Callable[[Place, str], Round]
    """Prepares a topic of this name and gives the round."""
    rounds: int = 250


def _append(place: Place, name: str, *, connections: int, records: int, durability: str = "disk") -> Round:
    topics = Topics(durability)
    topics.make(place.address, name)
    request = topics.append(name, records).encode()
    return partial(in_step, place.talks(connections), lambda number: request)


def _append_keyed(place: Place, name: str) -> Round:
    Topics("disk").make(place.address, name)
    talks, numbers = place.talks(_MANY), itertools.count()
    unused, records = "f" * 20, '"records":[{"data":' + payload(200) + "}]"
    body = f'{{"idempotency_key":"{unused}","idempotency_check":true,{records}}}'
    # Written over in place. A request made anew would have the client sweep the caches that both share, and cost the
    # server more than its key does.
    request = bytearray(post(f"/v0/topics/{name}", body).encode())
    at = request.index(unused.encode())

    def with_next_key(number: int) -> bytearray:
        request[at : at + len(unused)] = b"%020x" % next(numbers)
        return request

    return partial(in_step, talks, with_next_key)


def _append_stream(place: Place, name: str, *, connections: int, records: int, made_by: Speaker = _V1) -> Round:
    made_by.make(place.address, name)
    request = _V1.append(name, records).encode()
    return partial(in_step, place.talks(connections), lambda number: request)


def _diff(place: Place, name: str, *, behind: int) -> Round:
    _fill(place, name)
    body = json.dumps({"from_seq": 10 * _BATCH - behind, "limit": _BATCH})
    request = post(f"/v0/topics/{name}/diff", body).encode()
    return partial(in_step, place.talks(_MANY), lambda number: request)


def _read_stream(place: Place, name: str, *, query: str) -> Round:
    _fill(place, name)
    request = f"GET /v1/stream/{name}?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    return partial(in_step, place.talks(_MANY), lambda number: request)


def _fill(place: Place, name: str) -> None:
    topics = Topics("disk")
    topics.make(place.address, name)
    (talk,) = place.talks(1)
    for _ in range(10):
        talk.send(topics.append(name, _BATCH).encode())
        talk.answer()


def _jobs(place: Place, name: str) -> Round:
    place.ask("PUT", f"/v0/topics/{name}", {"type": "queue", "durability": "disk"})
    talks, path = place.talks(_MANY), f"/v0/topics/{name}"
    produce = Topics("disk").append(name, _JOBS).encode()
    claims = [
        post(f"{path}/claim", json.dumps({"node": f"w{number}", "max": _JOBS})).encode() for number in range(_MANY)
    ]
    in_step(talks, lambda number: produce)

    def go_round() -> None:
        for talk, claim in zip(talks, claims, strict=True):
            talk.send(claim)
        for number, talk in enumerate(talks):
            jobs = json.loads(talk.answer())["claimed"]
            assert len(jobs) == _JOBS
            acked = json.dumps({"node": f"w{number}", "seqs": [job["$seq"] for job in jobs]})
            talk.send(post(f"{path}/ack", acked).encode() + produce)
        for talk in talks:
            talk.answer()
            talk.answer()

    return go_round


def _open_socket(talk: Talk) -> None:
    talk.send(
        b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    talk.until(b"\r\n\r\n")


def _publish(place: Place, name: str) -> Round:
    Topics("disk").make(place.address, name)
    talks = place.talks(_MANY)
    for talk in talks:
        _open_socket(talk)
    message = {"op": "publish", "topic": name, "request_id": "1", "records": [{"data": json.loads(payload(200))}]}
    frame = text_frame(message)

    def go_round() -> None:
        for talk in talks:
            talk.send(frame)
        for talk in talks:
            talk.until(b'"performance"')

    return go_round


def _deliver(talks: list[Talk], writer: Talk, request: bytes) -> None:
    writer.send(request)
    writer.answer()
    for talk in talks:
        # Every payload has it once, and no other part of an answer does.
        talk.until(b"~")


def _watch(place: Place, name: str) -> Round:
    topics = Topics("disk")
    topics.make(place.address, name)
    talks, (writer,) = place.talks(_MANY), place.talks(1)
    for talk in talks:
        session = place.ask("POST", "/v0/watch", {"topics": {name: {"tail": True}}})
        talk.send(f"GET {session['stream_url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        talk.until(b"\r\n\r\n")
    return partial(_deliver, talks, writer, topics.append(name, 1).encode())


def _watch_sockets(place: Place, name: str) -> Round:
    topics = Topics("disk")
    topics.make(place.address, name)
    talks, (writer,) = place.talks(_MANY), place.talks(1)
    for talk in talks:
        _open_socket(talk)
        talk.send(text_frame({"op": "subscribe", "request_id": "1", "topics": {name: {"tail": True}}}))
        talk.until(b"subscribed")
    return partial(_deliver, talks, writer, topics.append(name, 1).encode())


def _watch_stream(place: Place, name: str) -> Round:
    topics = Topics("disk")
    topics.make(place.address, name)
    talks, (writer,) = place.talks(_MANY), place.talks(1)
    for talk in talks:
        talk.send(f"GET /v1/stream/{name}?offset=now&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        talk.until(b"\r\n\r\n")
    return partial(_deliver, talks, writer, _V1.append(name, 1).encode())


def _forward(place: Place, name: str) -> Round:
    topics = Topics("disk")
    topics.make(place.address, name)
    place.ask("PUT", f"/v0/routers/{name}-r", {"source": name, "dest": f"{name}-copy"})
    request = topics.append(name, 1).encode()
    return partial(in_step, place.talks(_MANY), lambda number: request)


def _fan_out(place: Place, name: str, *, routers: int) -> Round:
    topics = Topics("disk")
    topics.make(place.address, name)
    dests = [f"{name}-to-{number}" for number in range(routers)]
    for dest in dests:
        place.ask("PUT", f"/v0/routers/{dest}", {"source": name, "dest": dest})
    groups = [dests[at : at + _WATCHED] for at in range(0, routers, _WATCHED)]
    talks, (writer,) = place.talks(len(groups)), place.talks(1)
    for talk, group in zip(talks, groups, strict=True):
        session = place.ask("POST", "/v0/watch", {"topics": {dest: {"tail": True} for dest in group}})
        talk.send(f"GET {session['stream_url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for _ in group:
            talk.until(b"caught-up")
    request = topics.append(name, 1).encode()

    def go_round() -> None:
        writer.send(request)
        writer.answer()
        for talk, group in zip(talks, groups, strict=True):
            for _ in group:
                talk.until(b"~")

    return go_round


OPERATIONS = (
    Operation("append", "/v0 append, 16 at a time", _MANY, partial(_append, connections=_MANY, records=1)),
    Operation("append-1", "/v0 append, one at a time", 1, partial(_append, connections=1, records=1), 2000),
    Operation("append-64", "/v0 append, 64 at a time", 64, partial(_append, connections=64, records=1), 60),
    Operation("append-keyed", "/v0 append with an idempotency key, 16 at a time", _MANY, _append_keyed),
    Operation(
        "append-fsync",
        "/v0 append, class fsync, 16 at a time",
        _MANY,
        partial(_append, connections=_MANY, records=1, durability="fsync"),
    ),
    Operation(
        "append-fsync-64",
        "/v0 append, class fsync, 64 at a time",
        64,
        partial(_append, connections=64, records=1, durability="fsync"),
        60,
    ),
    Operation(
        "append-100", "/v0 append of 100, 16 at a time", _MANY, partial(_append, connections=_MANY, records=100), 60
    ),
    Operation("publish", "/v0 publish on a WebSocket, 16 at a time", _MANY, _publish),
    Operation("diff", "/v0 diff of 100 records, 16 at a time", _MANY, partial(_diff, behind=5 * _BATCH)),
    Operation("diff-tail", "/v0 diff that finds one record, 16 at a time", _MANY, partial(_diff, behind=1)),
    Operation("job", "/v0 job: produced, claimed and acknowledged by 8", _MANY * _JOBS, _jobs, 60),
    Operation("forward", "/v0 append that a router copies, 16 at a time", _MANY, _forward),
    Operation("fan-out-100", "/v0 append that 100 routers copy, all watched", 1, partial(_fan_out, routers=100), 100),
    Operation("fan-out", "/v0 append that 1,000 routers copy, all watched", 1, partial(_fan_out, routers=1000), 30),
    Operation("watch", "/v0 append that 16 event streams are told", 1, _watch, 500),
    Operation("watch-ws", "/v0 append that 16 WebSockets are told", 1, _watch_sockets, 500),
    Operation(
        "v1-append",
        "/v1 append, class fsync, 16 at a time",
        _MANY,
        partial(_append_stream, connections=_MANY, records=1),
    ),
    Operation(
        "v1-append-64",
        "/v1 append, class fsync, 64 at a time",
        64,
        partial(_append_stream, connections=64, records=1),
        60,
    ),
    Operation(
        "v1-append-disk",
        "/v1 append to a topic of class disk, 16 at a time",
        _MANY,
        partial(_append_stream, connections=_MANY, records=1, made_by=Topics("disk")),
    ),
    Operation(
        "v1-append-100",
        "/v1 append of 100, class fsync, 16 at a time",
        _MANY,
        partial(_append_stream, connections=_MANY, records=100),
        60,
    ),
    Operation(
        "v1-read", "/v1 read of 1,000 entries, 16 at a time", _MANY, partial(_read_stream, query="offset=-1"), 60
    ),
    Operation(
        "v1-read-tail", "/v1 read that finds nothing, 16 at a time", _MANY, partial(_read_stream, query="offset=now")
    ),
    Operation("v1-watch", "/v1 append that 16 event streams are told", 1, _watch_stream, 500),
)
