import pytest
from msgspec.structs import replace

from tests.crash.harness import dump
from tests.unit.conftest import FSYNC, append, delete, put, read, seqs, values
from tests.unit.ops.folders import OPTIONS, PLACE, at, back_up, manifests, patch, places, restore, start
from topics.engine.engine import Engine
from topics.log.frame import FrameKind
from topics.model.errors import BackupTargetError, DamagedBackupError
from topics.model.records import Record
from topics.model.router_rules import RouterWish, TagMatch
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import TopicType
from topics.ops.backup.backup_store import damages
from topics.ops.backup.restore import RequestedTopics, at_moment, at_seq_of, frames_of, newest_of, numbered
from topics.testing import FakeDisk, ManualClock, Survival


def filled() -> tuple[FakeDisk, ManualClock, Engine]:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    put(engine, "web.orders", durability=FSYNC)
    for number in range(20):
        append(engine, "web.orders", Record.of(number, tag=f"t{number % 2}"))
    append(engine, "web.clicks", 1, 2, config=patch())
    append(engine, "other", 1)
    return disk, clock, engine


def test_some_topics_come_back_alone() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    only, reported = restore(disk, requested=RequestedTopics(names=["other"]), clock=clock)
    assert list(dump(only)) == ["other"]
    assert [topic.topic for topic in reported.topics] == ["other"]
    below, _ = restore(disk, folder="below", requested=RequestedTopics(prefixes=["web."]), clock=clock)
    assert list(dump(below)) == ["web.clicks", "web.orders"]


def test_topics_come_back_under_other_names() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    restored, _ = restore(disk, requested=RequestedTopics(prefixes=["web."], rename=("web.", "old.")), clock=clock)
    assert list(dump(restored)) == ["old.clicks", "old.orders"]
    assert values(restored, "old.clicks") == [1, 2]
    append(restored, "old.orders", "more")
    assert values(restored, "old.orders", from_seq=20) == ["more"]


def test_two_topics_never_get_one_name() -> None:
    disk, clock, engine = filled()
    append(engine, "old.clicks", 1)
    back_up(engine)
    with pytest.raises(BackupTargetError, match=r"old\.clicks"):
        restore(disk, requested=RequestedTopics(rename=("web.", "old.")), clock=clock)


@pytest.mark.parametrize("prefix", ["/ bad", "__", "x" * 255, ""])
def test_names_that_no_topic_can_have_are_refused_before_anything_is_written(prefix: str) -> None:
    disk, clock, engine = filled()
    append(engine, "web._", 1)
    back_up(engine)
    with pytest.raises(BackupTargetError, match="is not a topic name"):
        restore(disk, requested=RequestedTopics(rename=("web.", prefix)), clock=clock)
    assert not disk.exists("back")


def test_dead_letters_go_to_the_topic_that_has_another_name() -> None:
    disk, clock, engine = filled()
    put(engine, "web.jobs", type=TopicType.QUEUE, dead_letter="web.dead")
    put(engine, "web.own", type=TopicType.QUEUE, dead_letter="dead")
    back_up(engine)
    restored, _ = restore(disk, requested=RequestedTopics(rename=("web.", "old.")), clock=clock)
    assert restored.core.directory.load("old.jobs").config.dead_letter == "old.dead"
    assert restored.core.directory.load("old.own").config.dead_letter == "dead"
    with pytest.raises(BackupTargetError, match="its own dead letter topic"):
        restore(disk, folder="again", requested=RequestedTopics(["web.own"], rename=("web.own", "dead")), clock=clock)


def test_a_place_may_hold_what_is_nobodys_backup() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    file = disk.open(f"{PLACE}/README", create=True)
    file.close()
    disk.make_dirs(f"{PLACE}/lost+found")
    assert len(places(disk)) == 1
    restored, _ = restore(disk, clock=clock)
    assert dump(restored) == dump(engine)


def test_seqs_that_others_may_have_seen_are_reported_as_lost() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    append(engine, "web.orders", "seen by a reader, and gone")
    restored, reported = restore(disk, gap=1000, clock=clock)
    [orders] = [topic for topic in reported.topics if topic.topic == "web.orders"]
    assert (orders.head_seq, orders.lost_from, orders.lost_to) == (20, 21, 1020)
    append(restored, "web.orders", "new")
    # The cursor of a reader that had seen seq 21.
    answer = read(restored, "web.orders", from_seq=21)
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (22, 1020)
    assert answer.tombstone.reason is LossReason.RESTORED
    assert seqs(restored, "web.orders", from_seq=1020) == [1021]


def test_a_state_before_a_seq() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    for number in range(20, 30):
        clock.advance(1)
        append(engine, "web.orders", number)
    back_up(engine)
    (place,) = places(disk)
    target = at_seq_of(place, manifests(place), "web.orders", 24)
    restored, reported = restore(disk, target, clock=clock)
    assert restored.core.directory.load("web.orders").head == 24
    assert reported.excluded_frames == 6
    with pytest.raises(BackupTargetError, match="beyond seq 3"):
        at_seq_of(place, manifests(place), "web.orders", 3)
    with pytest.raises(BackupTargetError, match="no backup has a topic nowhere"):
        at_seq_of(place, manifests(place), "nowhere", 3)


def test_a_state_before_a_seq_of_one_of_many_destinations() -> None:
    """Their forwards share frames, which are logged as the source's."""
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    put(engine, "source", durability=FSYNC)
    for number in range(12):
        engine.put_router(f"r{number}", RouterWish(source="source", dest=f"d{number}", from_seq=0), lambda answer: None)
    append(engine, "source", 0)
    engine.catch_up(engine.core.directory.load("source"))
    back_up(engine)
    for number in range(1, 6):
        clock.advance(1)
        append(engine, "source", number)
        engine.catch_up(engine.core.directory.load("source"))
    back_up(engine)
    (place,) = places(disk)
    kinds = {frame.kind for kept in manifests(place)[-1].log for frame in frames_of(place.read(kept))}
    assert FrameKind.FORWARDS in kinds
    restored, _ = restore(disk, at_seq_of(place, manifests(place), "d7", 3), clock=clock)
    assert restored.core.directory.load("d7").head == 3


def test_a_moment_before_every_backup_is_refused() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    with pytest.raises(BackupTargetError, match="no backup is as old"):
        at(disk, clock.now_ms() - 1)
    with pytest.raises(BackupTargetError, match="the storage has no backup"):
        at_moment(places(disk)[0], [], 1)
    with pytest.raises(BackupTargetError, match="the storage has no backup"):
        newest_of(places(disk)[0], [])
    with pytest.raises(BackupTargetError, match="backup 99 does not exist"):
        numbered([place for (found,) in [places(disk)] for place in manifests(found)], 99)


def test_a_folder_with_something_in_it_is_not_touched() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    disk.make_dirs("back")
    disk.open("back/precious", create=True).close()
    with pytest.raises(BackupTargetError, match="not empty"):
        restore(disk, clock=clock)
    assert disk.list_dir("back") == ["precious"]


def test_every_damaged_file_is_named_and_nothing_is_written() -> None:
    disk, clock, engine = filled()
    delete(engine, "web.orders", match=TagMatch("t1"))
    manifest = back_up(engine)
    (place,) = places(disk)
    segment = manifest.segments[0]
    assert segment.flags is not None
    file = disk.open(place.path(segment.data.name), write=True)
    file.write_at(30, b"x")
    file.close()
    disk.remove(place.path(segment.flags.name))
    short = disk.open(place.path(segment.index.name), write=True)
    short.truncate(3)
    short.close()
    assert {damage.name for damage in damages(place, manifest.files())} == {
        segment.data.name, segment.flags.name, segment.index.name,
    }  # fmt: skip
    with pytest.raises(DamagedBackupError) as refused:
        restore(disk, clock=clock)
    files = refused.value.detail["files"]
    assert isinstance(files, list)
    assert {found["name"] for found in files} == {segment.data.name, segment.flags.name, segment.index.name}
    assert not disk.exists("back")


def test_segments_of_the_cold_tier_come_back_into_the_folder() -> None:
    disk, clock, engine = filled()
    back_up(engine)
    assert disk.exists(PLACE)
    restored, _ = restore(disk, clock=clock)
    assert not any(segment.cold for topic in restored.core.topics.values() for segment in topic.segments)
    assert dump(restored) == dump(engine)


def test_the_log_of_a_backup_ends_with_its_run_also_in_shards_that_the_next_run_has_not() -> None:
    disk, clock = FakeDisk(), ManualClock()
    engine = start(disk, clock)
    for name in "abcdefgh":
        append(engine, name, 1, config=patch())
    moment = back_up(engine).moment
    for name in "abcdefgh":
        append(engine, name, 2)
    one_shard = replace(OPTIONS, wal_shards=1)
    # The log of this run is in the first shard, for any number of a topic.
    disk = disk.crash(Survival.EVERYTHING)
    engine = start(disk, clock, one_shard)
    for name in "abcdefgh":
        append(engine, name, 3)
    disk = disk.crash(Survival.EVERYTHING)
    clock.advance(1000)
    engine = start(disk, clock)
    for name in "abcdefgh":
        append(engine, name, 4)
    clock.advance(1000)
    back_up(engine)
    then, _ = restore(disk, at(disk, moment + 1500), clock=clock)
    assert [values(then, name) for name in "abcdefgh"] == [[1, 2]] * 8
