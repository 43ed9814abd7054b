"""WebSockets over real sockets: the handshake, messages, control frames, broken rules, endings, backpressure."""

import asyncio
import gc
import itertools
import struct
import weakref

import pytest

from tests.http.protocol.support import Loops, Site, get, until
from tests.http.protocol.websockets import (
    BINARY,
    CLOSE,
    CONT,
    HANDSHAKE,
    PING,
    PONG,
    TEXT,
    Heard,
    Peer,
    Recorder,
    SocketApp,
    closing,
    frame,
    turns,
)
from topics.http import text_frame
from topics.testing import ManualClock


def test_a_message_is_given_out_and_answered(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        assert await peer.ask(frame(TEXT, "grüße".encode())) == Heard(TEXT, "grüße".encode())
        peer.send(frame(BINARY, b"\xff\x00"), frame(TEXT, b"after"))
        assert await peer.heard() == Heard(TEXT, b"after")
        assert peer.recorder.binaries == [b"\xff\x00"]
        assert site.server.counters.connections_open == 1

    loops.run(scene, SocketApp())


def test_frames_right_behind_the_handshake_are_read(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site, at_once=frame(TEXT, b"early") + frame(TEXT, b"bird"))
        assert [await peer.heard(), await peer.heard()] == [Heard(TEXT, b"early"), Heard(TEXT, b"bird")]

    loops.run(scene, SocketApp())


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (get("/ws"), 426),
        (get("/ws", "connection: upgrade", "upgrade: h2c"), 426),
        (HANDSHAKE.replace(b"sec-websocket-version: 13", b"sec-websocket-version: 8"), 426),
        (HANDSHAKE.replace(b"sec-websocket-version: 13\r\n", b""), 426),
        (HANDSHAKE.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"c2hvcnQ="), 400),
        (HANDSHAKE.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"not base64!"), 400),
        (HANDSHAKE.replace(b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b""), 400),
    ],
)
def test_a_bad_handshake_is_an_answer_like_any_other(loops: Loops, request_bytes: bytes, status: int) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        reply = await client.ask(request_bytes)
        assert reply.status == status
        if status == 426:
            assert reply.headers.get("upgrade") == "websocket" or reply.headers["sec-websocket-version"] == "13"
        # The connection goes on.
        client.send(HANDSHAKE)
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")

    loops.run(scene, SocketApp())


def test_no_extension_is_agreed_on(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        client = await site.connect()
        offer = b"sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\nsec-websocket-key"
        client.send(HANDSHAKE.replace(b"sec-websocket-key", offer))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ") and b"sec-websocket-extensions" not in head

    loops.run(scene, SocketApp())


def test_a_message_may_come_in_parts_with_pings_between(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        whole = "köln".encode()
        # The cut is within a character.
        peer.send(frame(TEXT, whole[:2], fin=False), frame(PING, b"still there?"), frame(CONT, b"", fin=False))
        assert await peer.heard() == Heard(PONG, b"still there?")
        assert await peer.ask(frame(CONT, whole[2:])) == Heard(TEXT, whole)
        assert await peer.ask(frame(TEXT, b"next")) == Heard(TEXT, b"next")
        peer.send(frame(BINARY, b"a", fin=False), frame(CONT, b"b"))
        await until(lambda: peer.recorder.binaries == [b"ab"])

    loops.run(scene, SocketApp())


BROKEN = {
    "not masked": (frame(TEXT, b"x", masked=False), 1002),
    "reserved bit": (frame(TEXT, b"x", rsv=4), 1002),
    "unknown opcode": (frame(0x3, b"x"), 1002),
    "unknown control opcode": (frame(0xB, b"x"), 1002),
    "long control frame": (frame(PING, b"x" * 126), 1002),
    "fragmented control frame": (frame(PING, b"x", fin=False), 1002),
    "continuation of nothing": (frame(CONT, b"x"), 1002),
    "new message inside a message": (frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"), 1002),
    "close frame of one byte": (frame(CLOSE, b"x"), 1002),
    "close code that nobody may send": (closing(1006), 1002),
    "close reason that is no text": (closing(1000, b"\xff"), 1007),
    "text that is no text": (frame(TEXT, b"ab\xff"), 1007),
    "text that ends within a character": (frame(TEXT, b"\xc3", fin=False) + frame(CONT, b"x"), 1007),
    "surrogates": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "far too long": (frame(TEXT, b"x" * 3001), 1009),
    "far too long in parts": (frame(TEXT, b"x" * 2600, fin=False) + frame(CONT, b"x" * 401), 1009),
    "too long as announced": (b"\x81\xff" + struct.pack("!Q", 2**62) + b"mask", 1009),
    "http": (get("/v0/topics"), 1002),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_ends_the_connection_with_its_code(loops: Loops, name: str) -> None:
    wire, code = BROKEN[name]

    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.send(frame(TEXT, b"before"), wire, frame(TEXT, b"after"))
        assert await peer.heard() == Heard(TEXT, b"before")
        assert (await peer.heard()).code == code
        await peer.end()
        await until(lambda: peer.recorder.gone == 1)
        assert peer.recorder.texts == [b"before"]

    loops.run(scene, SocketApp(), body_bytes=1000, refused_message_bytes=2000)


@pytest.mark.parametrize(
    "wire",
    [
        frame(TEXT, b"x" * 1001),
        frame(BINARY, b"x" * 3000),
        frame(TEXT, b"x" * 600, fin=False) + frame(PING) + frame(CONT, b"x" * 401),
        frame(TEXT, b"x" * 100_000),
    ],
)
def test_a_message_over_the_limit_is_refused_and_the_connection_lives(loops: Loops, wire: bytes) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.send(frame(TEXT, b"before"), wire, frame(TEXT, b"after"))
        said: list[bytes] = []
        while len(said) < 3:
            heard = await peer.heard()
            said += [heard.data] if heard.opcode == TEXT else []
        assert said == [b"before", b"body_too_large", b"after"]
        await until(lambda: peer.recorder.texts == [b"before", b"after"])
        assert peer.recorder.refused[0][0].strip(b"x") == b""
        assert site.server.held_body_bytes == 0

    loops.run(scene, SocketApp(), body_bytes=1000)


def test_a_message_of_exactly_the_limit_is_fine(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        assert (await peer.ask(frame(TEXT, b"x" * 1000))).data == b"x" * 1000
        assert (await peer.ask(frame(TEXT, b"x" * 600, fin=False), frame(CONT, b"y" * 400))).data[-1:] == b"y"

    loops.run(scene, SocketApp(), body_bytes=1000)


def test_messages_on_their_way_count_in_the_budget(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        first, second = await Peer.open(site), await Peer.open(site)
        large = frame(TEXT, b"x" * 300_000)
        first.send(large[:200_000])
        await until(lambda: site.server.held_body_bytes > 100_000)
        second.send(large)
        assert await second.heard() == Heard(TEXT, b"too_many_bodies")
        assert await second.ask(frame(TEXT, b"later")) == Heard(TEXT, b"later")
        first.send(large[200_000:])
        assert len((await first.heard()).data) == 300_000
        assert site.server.held_body_bytes == 0
        first.send(frame(TEXT, b"x" * 200_000, fin=False))
        await until(lambda: site.server.held_body_bytes > 100_000)

    loops.run(scene, SocketApp(), bodies_bytes=350_000)


def test_a_peer_that_closes_gets_its_code_back(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        assert (await peer.ask(closing(3456, b"bye"))).data == struct.pack("!H", 3456) + b"bye"
        await peer.end()
        peer = await Peer.open(site)
        assert (await peer.ask(frame(CLOSE))) == Heard(CLOSE, b"")
        await peer.end()
        await until(lambda: peer.recorder.gone == 1)
        assert (peer.recorder.closings, site.server.counters.connections_open) == (1, 0)

    loops.run(scene, SocketApp())


def test_messages_before_a_close_are_answered_first(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        recorder = peer.recorder
        recorder.finishes = False
        recorder.answer = None
        peer.send(frame(TEXT, b"one"), frame(TEXT, b"two"), closing(), frame(TEXT, b"too late"))
        await until(lambda: recorder.closings == 1)
        await turns()
        assert recorder.texts == [b"one", b"two"]
        assert not recorder.socket.open
        assert recorder.socket.write(text_frame(b"answer"))
        recorder.socket.finish()
        recorder.socket.finish()
        assert not recorder.socket.write(text_frame(b"nobody hears this"))
        assert await peer.heard() == Heard(TEXT, b"answer")
        assert (await peer.heard()).code == 1000
        await peer.end()

    loops.run(scene, SocketApp())


def test_a_peer_that_is_held_and_closes_is_heard_out(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        recorder = peer.recorder
        recorder.socket.hold()
        peer.send(*[frame(TEXT, b"%d" % number) for number in range(100)], closing())
        await turns()
        assert recorder.texts == []
        recorder.socket.release()
        for number in range(100):
            assert await peer.heard() == Heard(TEXT, b"%d" % number)
        assert (await peer.heard()).code == 1000

    loops.run(scene, SocketApp())


def test_the_server_closes(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        # In the middle of a frame: the rest of it must not be taken for another one.
        half = frame(TEXT, b"x" * 1000)
        peer.send(half[:500])
        assert await peer.ask(half[500:]) == Heard(TEXT, b"x" * 1000)
        peer.send(half[:500])
        await turns()
        peer.recorder.socket.write(text_frame(b"last words"))
        peer.recorder.socket.close(1008, "enough")
        peer.recorder.socket.close(1000, "again")
        assert await peer.heard() == Heard(TEXT, b"last words")
        assert (await peer.heard()) == Heard(CLOSE, struct.pack("!H", 1008) + b"enough")
        peer.send(half[500:], frame(TEXT, b"unheard"), closing(1008))
        await peer.end()
        await until(lambda: peer.recorder.gone == 1)
        assert len(peer.recorder.texts) == 1
        assert peer.recorder.closings == 0

    loops.run(scene, SocketApp())


def test_a_peer_that_vanishes_is_noticed(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.client.abort()
        await until(lambda: peer.recorder.gone == 1)
        other = await Peer.open(site)
        other.client.writer.write_eof()
        await until(lambda: other.recorder.gone == 1)
        assert not other.recorder.socket.write(text_frame(b"x"))
        assert other.recorder.socket.buffered_bytes == 0

    loops.run(scene, SocketApp())


def test_a_receiver_that_fails_ends_its_connection_only(loops: Loops) -> None:
    def fail(_: bytes) -> None:
        raise RuntimeError("planted")

    async def scene(site: Site) -> None:
        peer, other = await Peer.open(site), await Peer.open(site)
        site.app.recorders[0].answer = fail  # type: ignore[attr-defined]
        assert (await peer.ask(frame(TEXT, b"x"))).code == 1011
        assert await other.ask(frame(TEXT, b"y")) == Heard(TEXT, b"y")

    loops.run(scene, SocketApp(), logs=("WebSocket receiver failed",))


def test_a_pause_of_the_receiver_stops_the_reading(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        recorder = peer.recorder

        def one_at_a_time(text: bytes) -> None:
            recorder.socket.hold()

        recorder.answer = one_at_a_time
        peer.send(*[frame(TEXT, b"x" * 1000)] * 5000)
        await turns()
        assert len(recorder.texts) == 1
        # Only the socket buffers and one read have left the client.
        assert site.server.counters.bytes_in < 2_000_000
        for count in range(1, 100):
            recorder.socket.release()
            await until(lambda count=count: len(recorder.texts) > count)  # type: ignore[misc]
            assert len(recorder.texts) == count + 1
        recorder.answer = None
        recorder.socket.release()
        await until(lambda: len(recorder.texts) == 5000)

    loops.run(scene, SocketApp())


def test_texts_that_came_together_may_be_taken_so(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        recorder = peer.recorder
        recorder.together = 3

        def some_at_a_time(text: bytes) -> None:
            recorder.echo(text)
            if len(recorder.texts) % 3 == 0:
                recorder.socket.hold()

        recorder.answer = some_at_a_time
        texts = [b"%d" % number for number in range(10)]
        peer.send(b"".join(frame(TEXT, text) for text in texts) + frame(PING, b"p") + frame(TEXT, b"last") + closing())
        for count in (3, 6, 9):
            await until(lambda count=count: len(recorder.texts) == count)  # type: ignore[misc]
            await turns()
            assert len(recorder.texts) == count
            recorder.socket.release()
        heard = [await peer.heard() for _ in range(13)]
        assert [one.data for one in heard if one.opcode == TEXT] == [*texts, b"last"]
        assert sorted(one.opcode for one in heard if one.opcode != TEXT) == [CLOSE, PONG]

    loops.run(scene, SocketApp())


def test_a_receiver_that_fails_with_several_gets_none_of_them_again(loops: Loops) -> None:
    def fail(text: bytes) -> None:
        if text == b"1":
            raise RuntimeError("planted")

    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.recorder.together, peer.recorder.answer = 10, fail
        assert (await peer.ask(b"".join(frame(TEXT, b"%d" % number) for number in range(5)))).code == 1011
        assert peer.recorder.texts == [b"0", b"1"]

    loops.run(scene, SocketApp(), logs=("WebSocket receiver failed",))


def test_a_peer_that_does_not_read_is_not_read_either(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        transport = peer.client.reader._transport  # type: ignore[attr-defined]
        transport.pause_reading()
        size, count = 50_000, 1000
        peer.send(*[frame(TEXT, b"x" * size)] * count)
        await until(lambda: not peer.recorder.socket.writable)
        await turns(50)
        # Beyond the socket buffers there is no more than the output buffer and one read.
        assert peer.recorder.socket.buffered_bytes < 500_000
        assert len(peer.recorder.texts) < count // 2
        transport.resume_reading()
        for _ in range(count):
            assert len((await peer.heard()).data) == size
        await until(lambda: peer.recorder.drains > 0)

    loops.run(scene, SocketApp(), write_buffer_bytes=100_000)


def test_pings_of_a_peer_that_does_not_read_do_not_fill_the_memory(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        flood = frame(PING, b"x" * 125) * 1000
        for _ in range(400):
            peer.send(flood)
        await until(lambda: not peer.recorder.socket.writable)
        await turns(50)
        assert peer.recorder.socket.buffered_bytes < 200_000

    loops.run(scene, SocketApp(), write_buffer_bytes=10_000, websocket_control_frames=1_000_000)


def test_messages_that_came_together_are_given_out_in_turns(loops: Loops) -> None:
    """Ten thousand messages in one write: other connections are served between every few of them."""
    served: list[int] = []

    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.recorder.answer = None
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def turn() -> None:
            served.append(len(peer.recorder.texts))
            if served[-1] == 10_000:
                over.set()
            else:
                loop.call_soon(turn)

        loop.call_soon(turn)
        peer.send(frame(TEXT, b"{}") * 10_000)
        await over.wait()

    loops.run(scene, SocketApp())
    assert max(after - before for before, after in itertools.pairwise(served)) <= 256


@pytest.mark.parametrize(
    "flood, reason",
    [
        (frame(TEXT, b"a", fin=False) + frame(CONT, fin=False) * 4200, b"a message of more than 4096 frames"),
        (frame(PING) * 1200, b"too many pings and pongs"),
        (frame(PONG) * 1200, b"too many pings and pongs"),
    ],
)
def test_a_peer_that_floods_with_frames_is_closed(loops: Loops, flood: bytes, reason: bytes) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        assert await peer.ask(frame(TEXT, b"before")) == Heard(TEXT, b"before")
        peer.send(flood)
        while (heard := await peer.heard()).opcode == PONG:
            pass
        assert (heard.code, heard.data[2:]) == (1008, reason)
        assert peer.recorder.texts == [b"before"]
        await peer.end()

    loops.run(scene, SocketApp(), ManualClock())


def test_a_message_of_many_frames_within_the_limit_is_read(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        parts = [frame(TEXT, b"a", fin=False), frame(CONT, b"b", fin=False) * 4094, frame(CONT, b"c")]
        assert await peer.ask(*parts) == Heard(TEXT, b"a" + b"b" * 4094 + b"c")

    loops.run(scene, SocketApp())


def test_a_quiet_peer_is_pinged_and_one_that_does_not_answer_cut_off(loops: Loops) -> None:
    clock = ManualClock()

    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        site.server.sweep()
        for _ in range(3):
            clock.advance(20_000)
            site.server.sweep()
            assert await peer.heard() == Heard(PING, b"")
            clock.advance(10_000)
            site.server.sweep()
            peer.send(frame(PONG))
            await turns(5)
            site.server.sweep()
        clock.advance(20_000)
        site.server.sweep()
        assert (await peer.heard()).opcode == PING
        clock.advance(19_000)
        site.server.sweep()
        await turns(5)
        assert peer.recorder.gone == 0
        clock.advance(1_000)
        site.server.sweep()
        await until(lambda: peer.recorder.gone == 1)

    loops.run(scene, SocketApp(), clock)


def test_a_busy_peer_is_not_pinged(loops: Loops) -> None:
    clock = ManualClock()

    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        for _ in range(10):
            site.server.sweep()
            clock.advance(19_000)
            assert await peer.ask(frame(TEXT, b"x")) == Heard(TEXT, b"x")

    loops.run(scene, SocketApp(), clock)


def test_a_peer_that_never_reads_again_is_cut_off(loops: Loops) -> None:
    clock = ManualClock()

    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        while peer.recorder.socket.write(text_frame(b"x" * 100_000)):
            await asyncio.sleep(0)
        await turns(50)
        site.server.sweep()
        clock.advance(59_000)
        site.server.sweep()
        assert peer.recorder.gone == 0
        clock.advance(1_000)
        site.server.sweep()
        await until(lambda: peer.recorder.gone == 1)

    loops.run(scene, SocketApp(), clock)


@pytest.mark.parametrize("finishes", [True, False])
def test_a_peer_that_never_ends_is_cut_off(loops: Loops, finishes: bool) -> None:
    clock = ManualClock()

    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        peer.recorder.finishes = finishes
        if finishes:
            peer.recorder.socket.close()
            assert (await peer.heard()).code == 1001
        else:
            peer.send(closing())
            await until(lambda: peer.recorder.closings == 1)
        site.server.sweep()
        clock.advance(4_000)
        site.server.sweep()
        assert peer.recorder.gone == 0
        clock.advance(1_000)
        site.server.sweep()
        await until(lambda: peer.recorder.gone == 1)

    loops.run(scene, SocketApp(), clock)


def test_a_stopping_server_closes_its_websockets(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peers = [await Peer.open(site) for _ in range(3)]
        stopping = asyncio.create_task(site.server.drain(10.0))
        for peer in peers:
            heard = await peer.heard()
            assert (heard.code, heard.data[2:]) == (1001, b"the server is shutting down")
        assert not stopping.done()
        for peer in peers:
            peer.send(closing(1001))
            await peer.end()
        assert await stopping

    loops.run(scene, SocketApp())


def test_stopping_server_aborts_unresponsive_sockets(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peer = await Peer.open(site)
        assert not await site.server.drain(0.05)
        await until(lambda: peer.recorder.gone == 1)

    loops.run(scene, SocketApp(), logs=("connections closed at shutdown",))


def test_one_frame_is_shared_by_many_sockets(loops: Loops) -> None:
    async def scene(site: Site) -> None:
        peers = [await Peer.open(site) for _ in range(20)]
        shared = text_frame(b'{"op":"record"}')
        for peer in peers:
            assert peer.recorder.socket.write(shared)
        for peer in peers:
            assert (await peer.heard()).data == b'{"op":"record"}'

    loops.run(scene, SocketApp())


def test_nothing_of_a_lost_connection_stays_behind(loops: Loops) -> None:
    kept: list[weakref.ref[Recorder]] = []

    async def scene(site: Site) -> None:
        app = site.app
        assert isinstance(app, SocketApp)
        for wire in (closing(), frame(TEXT, b"\xff"), frame(TEXT, b"x" * 90_000)[:80_000]):
            peer = await Peer.open(site)
            peer.recorder.answer = None
            kept.append(weakref.ref(peer.recorder))
            peer.send(wire)
            await turns(5)
            peer.client.abort()
            await until(lambda peer=peer: peer.recorder.gone == 1)  # type: ignore[misc]
            app.recorders.clear()
            app.exchanges.clear()
            del peer
        await turns()
        assert site.server.held_body_bytes == 0

    gc.collect()
    gc.disable()
    try:
        loops.run(scene, SocketApp())
        assert [reference() for reference in kept] == [None] * 3, "a lost connection waits for the collector"
    finally:
        gc.enable()
