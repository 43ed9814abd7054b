"""Helpers for the tests of the engine: synchronous, on a fake disk, with a clock that stands still.

An engine without an event loop does everything on the caller's stack, so an operation is answered before it returns.
`hold` and `flush` gather a group commit by hand; the functions named `ask_` leave an answer in a list, for tests that
look at what happens before it comes.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

from topics.engine.background_jobs import InlineRunner, Job
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult
from topics.engine.topic import Topic
from topics.log.frame import FrameKind, find_frames
from topics.log.fs import FileSystem
from topics.log.group_commit import InlineCommitter
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import Durability, TopicConfigPatch
from topics.streams.streams import Streams, inline_streams
from topics.system.clock import Clock
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

EPHEMERAL, MEMORY, DISK, FSYNC, REMOTE = Durability
LOCAL = [EPHEMERAL, MEMORY, DISK, FSYNC]
"""The classes that need no backup storage."""
Answers = list[object]
Result = TypeVar("Result")


def open_engine(
    disk: FileSystem | None = None,
    clock: Clock | None = None,
    *,
    boot_id: str = "a",
    progress: Callable[[float], None] = lambda done: None,
    **options: object,
) -> Engine:
    """An engine on a fake disk. A `boot_id` other than the last one's states that the machine restarted in between."""
    settings = {"data_dir": "data", "wal_shards": 1, "wal_file_bytes": 65_536, "disk_reserve_seqs": 256, **options}
    return Engine.recover(
        disk if disk is not None else FakeDisk(),
        EngineOptions(**settings),  # type: ignore[arg-type]
        clock or ManualClock(),
        SeededEntropy(1),
        boot_id=boot_id,
        progress=progress,
    )


def killed(disk: FakeDisk) -> FakeDisk:
    """The disk as a new process finds it after the old one was killed: nothing is lost."""
    return disk.crash(Survival.EVERYTHING)


def after_power_cut(disk: FakeDisk) -> FakeDisk:
    """The disk as a new machine finds it: only synced data is there. Open it with another `boot_id`."""
    return disk.crash(Survival.NOTHING)


def batch_of(
    *values: object,
    tag: str | None = None,
    node: str | None = None,
    key: str | None = None,
    check: bool = False,
    batch_node: str | None = None,
    create: bool | None = None,
    config: TopicConfigPatch | None = None,
) -> Batch:
    """A batch of plain values, or of records where a test needs more than one tag or node."""
    records = [value if isinstance(value, Record) else Record.of(value, tag=tag, node=node) for value in values]
    return Batch(
        records=records, node=batch_node, idempotency_key=key, idempotency_check=check, create=create, config=config
    )


def ask_append(engine: Engine, name: str, *values: object, **batch: object) -> Answers:
    answers: Answers = []
    engine.append(name, batch_of(*values, **batch), answers.append)  # type: ignore[arg-type]
    return answers


def append(engine: Engine, name: str, *values: object, **batch: object) -> AppendResult:
    return one(ask_append(engine, name, *values, **batch), AppendResult)


def ask_put(engine: Engine, name: str, **config: object) -> Answers:
    answers: Answers = []
    engine.put_topic(name, TopicConfigPatch(**config), answers.append)  # type: ignore[arg-type]
    return answers


def put(engine: Engine, name: str, **config: object) -> PutResult:
    return one(ask_put(engine, name, **config), PutResult)


def ask_drop(engine: Engine, name: str, if_empty: bool = False) -> Answers:
    answers: Answers = []
    engine.drop_topic(name, if_empty, answers.append)
    return answers


def drop(engine: Engine, name: str, if_empty: bool = False) -> DropResult:
    return one(ask_drop(engine, name, if_empty), DropResult)


def ask_delete(engine: Engine, name: str, before_seq: int | None = None, match: TagMatch | None = None) -> Answers:
    answers: Answers = []
    engine.delete_records(name, DeleteSelector(before_seq, match), answers.append)
    return answers


def delete(engine: Engine, name: str, before_seq: int | None = None, match: TagMatch | None = None) -> DeleteResult:
    return one(ask_delete(engine, name, before_seq, match), DeleteResult)


def one(answers: Answers, kind: type[Result]) -> Result:
    """The one answer, which must be a result."""
    assert len(answers) == 1, answers
    (answer,) = answers
    if isinstance(answer, TopicsError):
        raise answer
    assert isinstance(answer, kind)
    return answer


def read(engine: Engine, name: str, from_seq: int = 0, **request: object) -> ReadResult:
    return engine.read_now(name, ReadRequest(from_seq=from_seq, **{"limit": 1000, **request}))  # type: ignore[arg-type]


def seqs(engine: Engine, name: str, from_seq: int = 0, **request: object) -> list[int]:
    """The seqs that a reader at a cursor gets."""
    found = []
    for record in read(engine, name, from_seq, **request).records():
        seq = record["$seq"]
        assert isinstance(seq, int)
        found.append(seq)
    return found


def values(engine: Engine, name: str, from_seq: int = 0, **request: object) -> list[object]:
    return [record["data"] for record in read(engine, name, from_seq, **request).records()]


def times(engine: Engine, name: str) -> list[object]:
    return [record["$ts"] for record in read(engine, name).records()]


def topic(engine: Engine, name: str) -> Topic:
    return engine.core.directory.load(name)


def keys_on_their_way(topic: Topic) -> list[str]:
    """The idempotency keys that are taken and not yet known."""
    return [] if topic.keys is None else sorted(key for key, block in topic.keys.by_key.items() if not block.known)


def checkpoint(engine: Engine, full: bool = False) -> bool:
    """Takes a checkpoint; whether it succeeded."""
    outcome: list[bool] = []
    engine.run_job(engine.checkpointer.job(full, outcome.append))
    (succeeded,) = outcome
    return succeeded


def committers(engine: Engine) -> list[InlineCommitter]:
    found = []
    for shard in engine.core.shards:
        assert isinstance(shard.committer, InlineCommitter)
        found.append(shard.committer)
    return found


def hold(engine: Engine) -> None:
    """From now on operations wait for `flush`."""
    for committer in committers(engine):
        committer.hold = True


def flush(engine: Engine) -> None:
    """Commits pending operations as one group for each shard, and stops holding."""
    for committer in committers(engine):
        committer.hold = False
        committer.flush()


def logged(engine: Engine, shard: int = 0) -> list[FrameKind]:
    """The kinds of the frames in a shard's log files, in order."""
    folder = engine.core.layout.shard(shard)
    kinds: list[FrameKind] = []
    for name in engine._fs.list_dir(folder):
        file = engine._fs.open(f"{folder}/{name}")
        kinds += [frame.kind for frame in find_frames(file.map(), 0)]
        file.close()
    return kinds


def eq(tag: str) -> TagMatch:
    return TagMatch(tag)


def glob(prefix: str) -> TagMatch:
    return TagMatch(prefix, prefix=True)


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(disk: FakeDisk, clock: ManualClock) -> Engine:
    """An engine with the options most tests want: one shard, large segments."""
    return open_engine(disk, clock)


HOMES = ["tail", "pending", "sealed", "cold"]
"""The places of records: in memory, in memory on their way into a segment, in its files, in the cold folder."""


class _NeverRuns:
    """Keeps data cut from the tail in memory, as if the disk were slow."""

    def start(self, job: Job) -> None:
        job.close()

    def close(self) -> None: ...


def move(engine: Engine, name: str, home: str) -> None:
    """Moves a topic's tail to one of `HOMES`. The cold folder must be set for "cold"."""
    if home == "tail":
        return
    if home == "pending":
        engine.sealer.use(_NeverRuns())
    engine.core.before_change(topic(engine, name))
    engine.sealer.cut(topic(engine, name))
    if home == "cold":
        assert checkpoint(engine)
        engine.run_job(engine.housekeeper.relocate(topic(engine, name)))
        assert topic(engine, name).segments[-1].cold


def catch_up(engine: Engine) -> None:
    """Writes the data that `move` kept pending."""
    engine.sealer._running = False
    engine.sealer.use(InlineRunner())
    engine.sealer.resume()


def open_with_cold(disk: FileSystem | None = None, clock: Clock | None = None, **options: object) -> Engine:
    """An engine that keeps nothing in the hot folder that it may move."""
    return open_engine(disk, clock, cold_dir="cold", hot_retain_segments=0, **options)  # type: ignore[arg-type]


@pytest.fixture
def streams(disk: FakeDisk, clock: ManualClock) -> Streams:
    return inline_streams(open_engine(disk, clock, wal_shards=2, segment_max_events=4))
