"""Transactions against the plainest model of them: a list of values for each topic, and a dictionary of open
transactions.

Random lives of three ids over four topics in three shards: attempts that are replaced, joined, aborted and abandoned,
parts that are staged again, commits of all parts and of some, direct writes between them, checkpoints and kills. After
every step each topic has the content of the model, and every answer equals the model's.
"""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.property.totals import all_topics
from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    MEMORY,
    Answers,
    append,
    checkpoint,
    flush,
    hold,
    killed,
    open_engine,
    put,
    values,
)
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.testing import FakeDisk, ManualClock
from topics.transactions import commit
from topics.transactions.transaction_state import BeginRequest, StageRequest, TransactionRef, TransactionResult

TOPICS = {"a": DISK, "b": FSYNC, "c": MEMORY, "d": EPHEMERAL}
IDS = ("t", "u", "v")
STEPS = ["begin", "begin", "stage", "stage", "stage", "stage", "commit", "commit", "abort", "append", "checkpoint",
         "kill", "expire"]  # fmt: skip


class Model:
    """The open transaction of each id: its sequence, attempt and parts; and the sequence committed last."""

    def __init__(self) -> None:
        self.topics: dict[str, list[object]] = {name: [] for name in TOPICS}
        self.open: dict[str, tuple[int, str, dict[str, tuple[str, list[object]]]]] = {}
        self.known: dict[str, int] = {}

    def begin(self, name: str, sequence: int, attempt: str) -> str:
        if sequence <= self.known.get(name, -1):
            return "deduped" if sequence == self.known[name] else "transaction_sequence"
        current = self.open.get(name)
        if current is not None and sequence < current[0]:
            return "transaction_fenced"
        if current is None or current[:2] != (sequence, attempt):
            self.open[name] = (sequence, attempt, {})
        return "open"

    def find(self, name: str, sequence: int, attempt: str) -> str:
        current = self.open.get(name)
        if current is None:
            return "transaction_sequence" if sequence <= self.known.get(name, -1) else "transaction_not_found"
        return "" if current[:2] == (sequence, attempt) else "transaction_fenced"

    def stage(self, name: str, sequence: int, attempt: str, part: str, topic: str, some: list[object]) -> str:
        refused = self.find(name, sequence, attempt)
        if not refused:
            self.open[name][2][part] = (topic, some)
        return refused

    def commit(self, name: str, sequence: int, attempt: str, parts: list[str] | None) -> str:
        if sequence <= self.known.get(name, -1):
            return "deduped" if sequence == self.known[name] else "transaction_sequence"
        refused = self.find(name, sequence, attempt)
        if refused:
            return refused
        staged = self.open[name][2]
        if parts is not None and not set(parts) <= staged.keys():
            return "transaction_incomplete"
        for part in dict.fromkeys(staged if parts is None else parts):
            topic, some = staged[part]
            self.topics[topic] += some
        del self.open[name]
        self.known[name] = sequence
        return "committed"


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.model = Model()
        self.value = 0
        self._open()
        for name, durability in TOPICS.items():
            put(self.engine, name, durability=durability)

    def _open(self) -> None:
        self.engine = open_engine(self.disk, self.clock, wal_shards=3, segment_max_events=7)

    def step(self) -> None:
        getattr(self, self.rng.choice(STEPS))()
        for name, expected in self.model.topics.items():
            assert values(self.engine, name) == expected, name
        core, table = self.engine.core, self.engine.transactions.table
        assert core.staged_bytes == 0
        assert core.total_bytes == sum(topic.live_bytes for topic in all_topics(self.engine))
        for entry in table.open.values():
            assert entry.records == sum(part.count for part in entry.parts.values())
        staged = sum(entry.records for entry in table.open.values())
        books = core.directory.find("__ds/transactions")
        assert staged == (books.live_count if books is not None else 0)
        assert {name: entry.sequence for name, entry in table.open.items()} == {
            name: current[0] for name, current in self.model.open.items()
        }

    # Steps

    def _whom(self) -> tuple[str, int, str]:
        """Mostly the attempt that is open."""
        name = self.rng.choice(IDS)
        current = self.model.open.get(name)
        if current is not None and self.rng.random() < 0.8:
            return name, current[0], current[1]
        sequence = self.model.known.get(name, 0) + self.rng.randrange(-1, 3)
        return name, max(sequence, 0), f"attempt-{self.rng.randrange(4)}"

    def _told(self, answers: Answers, requested: str) -> None:
        (answer,) = answers
        if isinstance(answer, TopicsError):
            reported = answer.code
        elif isinstance(answer, TransactionResult):
            reported = "deduped" if answer.deduped else answer.state
        else:
            reported = ""
        assert reported == requested

    def begin(self) -> None:
        name, sequence, attempt = self._whom()
        request = BeginRequest(id=name, sequence=sequence, attempt=attempt, timeout_ms=10_000)
        self._told(
            _asked(lambda done: self.engine.transactions.begin(request, _anywhere, done)),
            self.model.begin(name, sequence, attempt),
        )

    def stage(self) -> None:
        name, sequence, attempt = self._whom()
        some: list[object] = [self._next() for _ in range(self.rng.randrange(1, 6))]
        part, topic = f"part-{self.rng.randrange(5)}", self.rng.choice(list(TOPICS))
        request = StageRequest(
            ref=TransactionRef(id=name, sequence=sequence, attempt=attempt), topic=topic, part=part,
            records=[Record.of(value) for value in some],
        )  # fmt: skip
        self._told(
            _asked(lambda done: self.engine.transactions.stage(request, done)),
            self.model.stage(name, sequence, attempt, part, topic, some),
        )

    def commit(self) -> None:
        name, sequence, attempt = self._whom()
        parts = None
        if self.rng.random() < 0.4:
            known = list(self.model.open[name][2]) if name in self.model.open else []
            parts = self.rng.sample(known, self.rng.randrange(len(known) + 1))
            parts += ["part-9"] if self.rng.random() < 0.1 else []
        ref = TransactionRef(id=name, sequence=sequence, attempt=attempt)
        requested = self.model.commit(name, sequence, attempt, parts)
        if requested != "committed":
            self._told(_asked(lambda done: self.engine.transactions.commit(ref, parts, _anywhere, done)), requested)
            return
        # Others write while it is on its way: they come behind it, or before it where it waits for its next round.
        hold(self.engine)
        answers = _asked(lambda done: self.engine.transactions.commit(ref, parts, _anywhere, done))
        topic, value = self.rng.choice(["a", "b", "c"]), self._next()
        behind = _asked(lambda done: self.engine.append(topic, Batch(records=[Record.of(value)]), done))
        for _ in range(30):
            for shard in self.engine.core.shards:
                shard.committer.flush()  # type: ignore[attr-defined]
        flush(self.engine)
        self._told(answers, requested)
        assert len(behind) == 1
        self.model.topics[topic].append(value)
        # Rounds let it in between; the records, and the order of each writer, are the same.
        found = values(self.engine, topic)
        assert sorted(map(str, found)) == sorted(map(str, self.model.topics[topic]))
        assert [one for one in found if one != value] == self.model.topics[topic][:-1]
        self.model.topics[topic] = found

    def abort(self) -> None:
        name, sequence, attempt = self._whom()
        refused = self.model.find(name, sequence, attempt)
        ref = TransactionRef(id=name, sequence=sequence, attempt=attempt)
        self._told(_asked(lambda done: self.engine.transactions.abort(ref, done)), refused or "aborted")
        if not refused:
            del self.model.open[name]

    def append(self) -> None:
        topic, value = self.rng.choice(list(TOPICS)), self._next()
        append(self.engine, topic, value)
        self.model.topics[topic].append(value)

    def checkpoint(self) -> None:
        assert checkpoint(self.engine)

    def kill(self) -> None:
        self.disk = killed(self.disk)
        self._open()
        self.model.topics["d"] = []

    def expire(self) -> None:
        self.clock.advance(10_000)
        self.engine.housekeeper.tick()
        self.model.open.clear()

    def _next(self) -> int:
        self.value += 1
        return self.value


def _anywhere(name: str) -> None: ...


def _asked(ask: Callable[[Callable[[object], None]], None]) -> Answers:
    answers: Answers = []
    try:
        ask(answers.append)
    except TopicsError as error:
        answers.append(error)
    return answers


@effort(200)
@given(seed=st.integers(0, 2**32 - 1), round_bytes=st.sampled_from([6, 4 * 1024 * 1024]))
def test_every_life_of_transactions_is_that_of_the_model(seed: int, round_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "_ROUND_BYTES", round_bytes)
        life = Life(seed)
        for _ in range(60):
            life.step()
