"""Publishes that came together are answered, and stored, like single ones."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.http.protocol.memory import Wire
from tests.http.protocol.websockets import TEXT, frame, split_frames
from tests.unit.api.v0.test_ws import Site
from topics.api.v0.websocket import PUBLISHES_MAX, Session
from topics.http import WebSocket
from topics.model.limits import Limits


def publish(*values: object, topic: str = "t", **rest: object) -> bytes:
    command = {"op": "publish", "topic": topic, "records": [{"data": value} for value in values], **rest}
    return json.dumps(command, ensure_ascii=False).encode()


def with_record(**record: object) -> bytes:
    return json.dumps({"op": "publish", "topic": "t", "records": [record]}).encode()


ROWS: dict[str, list[bytes]] = {
    "plain": [publish(1), publish(2), publish(3)],
    "many": [publish(number, request_id=number) for number in range(3 * PUBLISHES_MAX)],
    "ids": [publish(1, request_id="ä%s"), publish(2, request_id=7), publish(3, request_id=None), publish(4)],
    "an id that is too long": [publish(1, request_id="x" * 256), publish(2, request_id="x" * 257), publish(3)],
    "an id of another type": [publish(1), publish(2, request_id=1.5), publish(3)],
    "no seqs wanted": [publish(1), publish(2, return_seqs=False), publish(3)],
    "not ASCII": [publish("ä"), publish("☃", request_id="☃"), publish("x")],
    "tags": [publish(1), with_record(data=2, tag="a"), with_record(data=3, node="n")],
    "meta": [publish(1), with_record(data=2, meta={"a": 1}), with_record(data=3, meta=None)],
    "bad meta": [publish(1), with_record(data=2, meta=[1]), publish(3)],
    "no data": [publish(1), with_record(tag="a"), publish(3)],
    "too large": [publish(1), publish("x" * 3000), publish(3)],
    "several records, and none": [publish(1), publish(2, 3), publish(), publish(4)],
    "a node for all": [publish(1), publish(2, node="n"), publish(3)],
    "a delay for no queue": [publish(1), publish(2, delay_ms=5), publish(3)],
    "a config": [publish(1), publish(2, config={}), publish(3, config=None)],
    "unknown fields": [publish(1), publish(2, surprise=1), publish(3)],
    "keys": [publish(1, idempotency_key="a"), publish(2), publish(3, idempotency_key="b")],
    "a key twice": [publish(1, idempotency_key="a"), publish(1, idempotency_key="a"), publish(2)],
    "a key for another record": [
        publish(1, idempotency_key="a"),
        publish(2, idempotency_key="a", idempotency_check=True),
        publish(3, idempotency_key="a"),
    ],
    "keys that are none": [publish(1, idempotency_key=""), publish(2, idempotency_key="x" * 2000), publish(3)],
    "several topics": [publish(n, topic=topic) for n, topic in enumerate("tttuutuv")],
    "a new topic": [publish(1, topic="new"), publish(2, topic="new"), publish(3)],
    "no new topic": [publish(1), publish(2, topic="none", create=False), publish(3, create=False)],
    "a bad name": [publish(1), publish(2, topic="no/good"), publish(3)],
    "other commands": [publish(1), publish(2), b'{"op":"ping","request_id":1}', publish(3), b'{"op":"unsubscribe"}'],
    "no commands": [publish(1), b"[]", b"nonsense", b'{"op":"dance"}', b'{"op":"publish"}', publish(2)],
    "fields twice": [b'{"op":"publish","topic":"u","topic":"t","records":[],"records":[{"data":1}]}', publish(2)],
    "nested deeply": [publish(1), b'{"op":"publish","topic":"t","records":' + b"[" * 2000, publish(2)],
}  # fmt: skip


def answers(wire: Wire) -> list[dict[str, Any]]:
    stream = b"".join(wire.writes).partition(b"\r\n\r\n")[2]
    found = [json.loads(one.data) for one in split_frames(stream)]
    for one in found:
        if one["op"] == "ack":
            assert sorted(one.pop("performance")) == ["fsync_ms", "server_total_ms", "wal_append_ms"]
    return found


async def heard(wire: Wire, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(30.0):
        while len(answers(wire)) < count:
            await asyncio.sleep(0.001)
    return answers(wire)


def stored(site: Site) -> dict[str, Any]:
    topics = site.engine.core.directory.resident
    return {name: (topics[name].head, topics[name].staged_count) for name in sorted(topics)}


async def said(texts: list[bytes], *, together: bool) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """Returns the answers and the stored records, and how many were taken together."""
    site = Site(limits=Limits(max_record_bytes=2000))
    gathered: list[object] = []
    append_requests = site.engine.append_requests

    def spy(name: str, requests: Sequence[object], source: Any, streams: bool = False) -> bool:
        took = append_requests(name, requests, source, streams)
        gathered.extend(requests if took and len(requests) > 1 else [])
        return took

    site.engine.append_requests = spy
    wire = site.open()
    for count, topic in enumerate("tu", 1):
        wire.protocol.data_received(frame(TEXT, publish(0, topic=topic)))
        await heard(wire, count)
    frames = [frame(TEXT, text) for text in texts]
    for piece in [b"".join(frames)] if together else frames:
        wire.protocol.data_received(piece)
        while not together and not wire.reading:
            await asyncio.sleep(0.001)
    result = await heard(wire, 2 + len(texts))
    found = stored(site)
    wire.lose()
    await site.engine.close()
    return result, found, len(gathered)


@pytest.mark.parametrize("texts", ROWS.values(), ids=ROWS.keys())
def test_together_is_as_one_by_one(texts: list[bytes]) -> None:
    assert asyncio.run(said(texts, together=True))[:2] == asyncio.run(said(texts, together=False))[:2]


def test_plain_publishes_are_taken_together() -> None:
    assert asyncio.run(said(ROWS["plain"], together=True))[2] == len(ROWS["plain"])
    assert asyncio.run(said(ROWS["many"], together=True))[2] == len(ROWS["many"])
    assert asyncio.run(said(ROWS["plain"], together=False))[2] == 0


def test_publishes_before_another_command_are_a_run() -> None:
    assert asyncio.run(said(ROWS["other commands"], together=True))[2] == 2


def test_run_is_answered_by_one_write() -> None:
    async def scene() -> None:
        site = Site()
        wire = site.open()
        wire.protocol.data_received(frame(TEXT, publish(0)))
        await heard(wire, 1)
        before = len(wire.writes)
        wire.protocol.data_received(b"".join(frame(TEXT, publish(n)) for n in range(16)))
        await heard(wire, 17)
        assert len(wire.writes) == before + 1
        wire.lose()
        await site.engine.close()

    asyncio.run(scene())


def test_every_topic_of_a_run_is_checked() -> None:
    async def scene() -> None:
        site = Site(keys="secret:write:t")
        wire = site.open(b"authorization: Bearer secret\r\n")
        wire.protocol.data_received(frame(TEXT, publish(0)))
        await heard(wire, 1)
        texts = [publish(1), publish(2), publish(3, topic="other"), publish(4)]
        wire.protocol.data_received(b"".join(frame(TEXT, text) for text in texts))
        reported = (await heard(wire, 5))[1:]
        assert [one["op"] for one in reported] == ["ack", "ack", "error", "ack"]
        assert reported[2]["code"] == "forbidden"
        assert sorted(site.engine.core.directory.resident) == ["t"]
        for key in site.keys:
            key.revoke()
        wire.protocol.data_received(b"".join(frame(TEXT, text) for text in texts[:2]))
        assert [one["op"] for one in (await heard(wire, 7))[5:]] == ["error", "error"]
        wire.lose()
        await site.engine.close()

    asyncio.run(scene())


def test_no_more_than_allowed_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine the first message may take more than a slice, and the next ones would wait for their turn.
    monkeypatch.setattr("topics.http.websocket.socket.SLICE_S", 60.0)

    async def scene() -> None:
        site = Site()
        wire = site.open()
        wire.protocol.data_received(frame(TEXT, publish(0)))
        await heard(wire, 1)
        wire.protocol.data_received(b"".join(frame(TEXT, publish(n)) for n in range(PUBLISHES_MAX + 5)))
        assert isinstance(wire.protocol, WebSocket)
        topic = site.engine.core.directory.load("t")
        assert topic.coalesced is not None
        assert topic.coalesced.waiting == PUBLISHES_MAX
        assert not wire.reading
        await heard(wire, 1 + PUBLISHES_MAX + 5)
        assert wire.reading
        wire.lose()
        await site.engine.close()

    asyncio.run(scene())


def test_a_socket_that_is_gone_leaves_what_it_published() -> None:
    async def scene() -> None:
        site = Site()
        wire = site.open()
        wire.protocol.data_received(frame(TEXT, publish(0)))
        await heard(wire, 1)
        # One of them has to be looked at by itself.
        texts = [publish(1), with_record(data=2, meta=[1]), publish(3)]
        wire.protocol.data_received(b"".join(frame(TEXT, text) for text in texts))
        wire.lose()
        async with asyncio.timeout(30.0):
            while site.engine.core.directory.load("t").head < 3:
                await asyncio.sleep(0.001)
        await site.engine.close()

    asyncio.run(scene())


def test_a_run_that_cannot_be_taken_ends_its_socket_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("planted")

    async def scene() -> None:
        site = Site()
        wire, other = site.open(), site.open()
        wire.protocol.data_received(frame(TEXT, publish(0)))
        await heard(wire, 1)
        with monkeypatch.context() as patch:
            patch.setattr(Session, "_publish", fail)
            wire.protocol.data_received(frame(TEXT, publish(1)) + frame(TEXT, with_record(data=2, meta=[1])))
            async with asyncio.timeout(30.0):
                while b"\x03\xf3" not in wire.writes[-1]:
                    await asyncio.sleep(0.001)
        other.protocol.data_received(frame(TEXT, publish(3)) + frame(TEXT, publish(4)))
        assert [one["first_seq"] for one in await heard(other, 2)] == [2, 3]
        wire.lose()
        other.lose()
        await site.engine.close()

    asyncio.run(scene())
    assert "publish failed" in caplog.text
