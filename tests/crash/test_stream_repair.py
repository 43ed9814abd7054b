"""Damage in the frames of streams: refused by a start, named by verify, mended by repair; other data is unchanged."""

import msgspec
import pytest

from tests.crash.wreckage import BOOT, OPTIONS, content, files, flip, look, mend, settled
from topics.engine.engine import Engine
from topics.log.frame import Frame, FrameKind, find_frames
from topics.model.errors import DamageError, TopicsError
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest, ForkFrom
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_frames import Producer
from topics.streams.stream_state import Position
from topics.streams.streams import Streams, inline_streams
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

ONE_SHARD = msgspec.structs.replace(OPTIONS, wal_shards=1, wal_file_bytes=65536, segment_max_events=100)
VALUES = [f"<{number}>" for number in range(6)]


def open_streams(disk: FakeDisk) -> Streams:
    return inline_streams(Engine.recover(disk, ONE_SHARD, ManualClock(), SeededEntropy(1), boot_id=BOOT))


def build() -> FakeDisk:
    """A folder whose log has every kind of frame that streams write."""
    disk = FakeDisk()
    streams = open_streams(disk)
    answers: list[object] = []
    streams.create("a", CreateRequest(content_type="text/plain", body=VALUES[0].encode(), ttl_s=100), answers.append)
    for seq, value in enumerate(VALUES[1:]):
        request = AppendRequest(body=value.encode(), content_type="text/plain", producer=Producer("p", 0, seq))
        streams.append("a", request, answers.append)
    streams.create("f", CreateRequest(fork=ForkFrom("a")), answers.append)
    streams.append("f", AppendRequest(body=b"own", content_type="text/plain"), answers.append)
    streams.append("f", AppendRequest(close=True), answers.append)
    streams.delete("a", answers.append)
    streams.create("d", CreateRequest(content_type="application/json"), answers.append)
    streams.update_profile("d", b'{"profile":{"kind":"evlog"}}', answers.append)
    streams.create("b", CreateRequest(content_type="application/json", body=b"[1,2,3]"), answers.append)
    assert not [answer for answer in answers if isinstance(answer, TopicsError)]
    return settled(disk.crash(Survival.EVERYTHING))


def frames(disk: FakeDisk) -> list[tuple[str, Frame]]:
    logs = sorted(path for path in files(disk) if path.endswith(".wal"))
    return [(path, frame) for path in logs for frame in find_frames(memoryview(content(disk, path)), 0)]


def read(streams: Streams, name: str) -> tuple[str, list[tuple[int, int]]]:
    """Reads all remaining entries of a stream, and the ranges it reports as lost."""
    found, lost, position = "", [], Position(0)
    topic = streams.engine.core.directory.load(name)
    while True:
        answers: list[StreamSlice | TopicsError] = []
        streams.read(topic, ReadSpec(position=position, as_json=False), answers.append)
        part = answers[0]
        assert isinstance(part, StreamSlice)
        found += part.body.decode()
        if part.tombstone is not None:
            lost.append((part.tombstone.gap_from, part.tombstone.gap_to))
        if part.position == position or part.at_tail:
            return found, lost
        position = part.position


KINDS = [
    FrameKind.STREAM_APPEND, FrameKind.STREAM_CREATE, FrameKind.STREAM_CLOSE, FrameKind.STREAM_RETIRE,
    FrameKind.STREAM_CONTRACT,
]  # fmt: skip


def test_the_log_has_the_frames_that_are_damaged_below() -> None:
    assert set(KINDS) <= {frame.kind for _, frame in frames(build())}
    assert look(build()).findings == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_damaged_frame_stops_the_start_and_is_mended(kind: FrameKind) -> None:
    disk = build()
    path, frame = next((path, frame) for path, frame in frames(disk) if frame.kind is kind)
    flip(disk, path, frame.end - 10)
    with pytest.raises(DamageError):
        open_streams(disk.clone())
    report = mend(disk)
    assert report.after is not None and report.after.sound, report.after
    streams = open_streams(disk)
    assert read(streams, "b")[0] == "123"
    streams.create("new", CreateRequest(body=b"x"), lambda answer: None)
    assert read(streams, "new")[0] == "x"


def test_a_lost_append_is_reported_with_its_seq_and_its_neighbours_are_there() -> None:
    disk = build()
    appends = [(path, frame) for path, frame in frames(disk) if frame.kind is FrameKind.STREAM_APPEND]
    path, frame = appends[2]
    flip(disk, path, frame.end - 10)
    report = mend(disk)
    assert [(loss.topic, loss.from_seq, loss.to_seq) for loss in report.losses] == [("a", 4, 4)]
    streams = open_streams(disk)
    assert read(streams, "f") == ("<0><1><2><4><5>own", [(4, 4)]), "the fork reads around the loss and tells it"
    state = streams.state(streams.engine.core.directory.load("a"))
    assert state is not None and state.producers == {"p": Producer("p", 0, 4)}


@pytest.mark.parametrize("step", [7])
def test_no_flipped_byte_loses_anything_in_silence(step: int) -> None:
    """Any wrong byte of the log is found and can be repaired, and records that are missing after that are reported."""
    whole = build()
    (path,) = {path for path, _ in frames(whole)}
    # Behind it there is nothing that could prove that the last frame was ever whole.
    end = max(frame.start for _, frame in frames(whole))
    for offset in range(0, end, step):
        disk = whole.clone()
        flip(disk, path, offset)
        assert look(disk).findings, f"byte {offset} is wrong, and nobody says so"
        report = mend(disk)
        assert report.after is not None and report.after.sound, (offset, report)
        streams = open_streams(disk)
        reported = {loss.topic for loss in report.losses}
        for name, text in (("f", "<0><1><2><3><4><5>own"), ("b", "123")):
            topic = streams.engine.core.directory.find(name)
            found = read(streams, name)[0] if topic is not None else ""
            assert found == text or reported or report.actions, (
                f"byte {offset}: {name} is {found!r} and nothing is said"
            )
