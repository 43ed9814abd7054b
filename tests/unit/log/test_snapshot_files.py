import pytest

from topics.log import snapshot_files
from topics.log.frame import Frame, FrameKind, read_frame
from topics.log.layout import Layout
from topics.log.snapshot_files import (
    SnapshotFile,
    SnapshotHead,
    SnapshotWriter,
    TopicEntry,
    decode_directory,
    read_snapshot,
)
from topics.model.errors import DamageError
from topics.testing import FakeDisk

LAYOUT = Layout("data")
HEAD = SnapshotHead(3, [], 1, [], 9, 1000, [])


def entry(number: int) -> TopicEntry:
    return TopicEntry(f"t{number}", "disk", number, 10 * number, 1000 + number)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    """Six topics, of which the fourth has to be read at once, two or three a span."""
    monkeypatch.setattr(snapshot_files, "SPAN_BYTES", 300)
    disk = FakeDisk()
    disk.make_dirs(LAYOUT.meta)
    writer = SnapshotWriter(disk, LAYOUT, HEAD, indexed=True)
    for number in range(1, 7):
        tail = [(b"head", b"text")] * (number % 3)
        writer.add_topic(number, b"state%d" % number, tail, entry(number) if number != 4 else None)
    writer.finish()
    writer.close()
    return disk


def content(disk: FakeDisk) -> bytes:
    return bytes(disk.open(LAYOUT.snapshot(3)).map())


def spoil(disk: FakeDisk, at: int) -> None:
    file = disk.open(LAYOUT.snapshot(3), write=True)
    file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))
    file.close()


def test_directories_name_every_topic_and_where_it_is(disk: FakeDisk) -> None:
    file = SnapshotFile(disk, LAYOUT, 3)
    found = file.directories()
    assert len(found) > 2
    assert file.head() == HEAD
    seen = {}
    for _, _, directory in found:
        numbers = zip(directory.live, directory.live_bytes, directory.written, strict=True)
        for place, (topic_id, name, row) in enumerate(zip(directory.ids, directory.names, numbers, strict=True)):
            stored = file.topic(directory.offsets[place], directory.sizes[place])
            assert bytes(stored.state.body) == b"state%d" % topic_id
            assert [bytes(frame.body) for frame in stored.tail] == [b"headtext"] * (topic_id % 3)
            assert directory.classes[place] == 2
            seen[topic_id] = TopicEntry(name, "disk", *row)
        for offset, size in directory.others:
            assert bytes(file.topic(offset, size).state.body) == b"state4"
            seen[4] = entry(4)
    assert seen == {number: entry(number) for number in range(1, 7)}


def test_one_of_them_can_be_read_again(disk: FakeDisk) -> None:
    file = SnapshotFile(disk, LAYOUT, 3)
    for at, end, directory in file.directories():
        assert file.directory(at, end) == directory


def test_directories_are_not_yielded_as_frames(disk: FakeDisk) -> None:
    _, frames = read_snapshot(disk, LAYOUT, 3)
    kinds = [frame.kind for frame in frames]
    assert kinds.count(FrameKind.TOPIC) == 6
    assert set(kinds) == {FrameKind.TOPIC, FrameKind.APPEND}


def test_every_flipped_bit_is_found(disk: FakeDisk) -> None:
    whole = len(content(disk))
    for at in range(whole):
        damaged = disk.clone()
        spoil(damaged, at)
        with pytest.raises(DamageError):
            file = SnapshotFile(damaged, LAYOUT, 3)
            file.head()
            # Where its end cannot be read, it is taken for one without directories, and walked through.
            if not file.directories():
                list(file.walk())


def test_a_directory_of_another_span_is_damage(disk: FakeDisk) -> None:
    buffer, at = memoryview(content(disk)), 0
    while isinstance(frame := read_frame(buffer, at), Frame) and frame.kind is not FrameKind.DIRECTORY:
        at = frame.end
    assert isinstance(frame, Frame)
    assert decode_directory(frame.body).begin == 0
    short = FakeDisk()
    short.make_dirs(LAYOUT.meta)
    file = short.open(LAYOUT.snapshot(3), create=True)
    file.write_at(0, content(disk)[frame.end :])
    file.close()
    with pytest.raises(DamageError):
        SnapshotFile(short, LAYOUT, 3).directories()


def test_a_snapshot_without_directories_is_walked_through() -> None:
    disk = FakeDisk()
    disk.make_dirs(LAYOUT.meta)
    writer = SnapshotWriter(disk, LAYOUT, HEAD)
    writer.add_topic(1, b"one", [(b"head", b"text")], entry(1))
    writer.add_topic(2, b"two", [])
    writer.finish()
    writer.close()
    file = SnapshotFile(disk, LAYOUT, 3)
    assert file.directories() == []
    assert [(bytes(s.state.body), len(s.tail)) for s in file.walk()] == [(b"one", 1), (b"two", 0)]


def test_a_missing_one_is_damage() -> None:
    disk = FakeDisk()
    disk.make_dirs(LAYOUT.meta)
    with pytest.raises(DamageError):
        SnapshotFile(disk, LAYOUT, 3)
