"""An engine with transactions on a fake disk, and the promises that it may never break.

It is a world of topics as `tests.crash.router_world` has it: published records stay, or their loss is reported.
Besides, of everything that was staged for a sequence of an id, one attempt is there as a whole, or none; an attempt
whose commit was answered is there in every case; and one without a requested commit is not.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.crash.harness import Dump
from tests.crash.router_world import RouterWorld
from topics.engine.core import EngineOptions
from topics.engine.topic import Block, Topic
from topics.log.fs import FileSystem
from topics.model.errors import TopicsError
from topics.model.records import Record
from topics.model.topic_config import Durability, is_own_name
from topics.transactions.transaction_state import BeginRequest, StageRequest, TransactionRef, TransactionResult

Place = tuple[str, int]
"""An id and a sequence."""


@dataclass
class Attempt:
    name: str
    values: dict[str, list[object]] = field(default_factory=dict)
    """By topic, the values whose staging was answered."""
    asked: bool = False
    acked: bool = False

    def copy(self) -> "Attempt":
        return Attempt(self.name, {topic: list(some) for topic, some in self.values.items()}, self.asked, self.acked)


def permit(name: str) -> None:
    """Everybody may write everywhere."""


class TransactionWorld(RouterWorld):
    def __init__(self, fs: FileSystem, options: EngineOptions) -> None:
        super().__init__(fs, options)
        self.attempts: dict[Place, list[Attempt]] = {}
        self.gone: set[str] = set()
        """Names of topics whose deletion was asked for."""
        self.passed: dict[int, set[int]] = {}
        """By topic: seqs without a record that readers have passed; none may come there any more."""
        self.out_of_turn: list[str] = []

    def _note(self, topic: Topic, block: Block) -> None:
        seen = self.published.get(topic.id)
        if seen and not is_own_name(topic.name):
            last = max(seen)
            if block.first_seq <= last:
                self.out_of_turn.append(f"{topic.name}: {block.first_seq} was published behind {last}")
            self.passed.setdefault(topic.id, set()).update(range(last + 1, block.first_seq))
        super()._note(topic, block)

    def fork(self) -> "TransactionWorld":
        twin = super().fork()
        assert isinstance(twin, TransactionWorld)
        twin.attempts = {place: [one.copy() for one in some] for place, some in self.attempts.items()}
        twin.gone = set(self.gone)
        twin.passed = {topic: set(seqs) for topic, seqs in self.passed.items()}
        twin.out_of_turn = list(self.out_of_turn)
        return twin

    # Operations

    def drop(self, name: str) -> None:
        self.gone.add(name)
        super().drop(name)

    def begin(self, name: str, sequence: int) -> None:
        attempts = self.attempts.setdefault((name, sequence), [])
        attempt = Attempt(f"attempt{len(attempts)}-{self.boot}")
        request = BeginRequest(id=name, sequence=sequence, attempt=attempt.name)

        def begun(outcome: object) -> None:
            if isinstance(outcome, TransactionResult) and outcome.state == "open":
                attempts.append(attempt)

        self._ask(lambda: self.engine.transactions.begin(request, permit, begun))

    def stage(self, name: str, sequence: int, topic: str, count: int = 1, part: str | None = None) -> None:
        attempts = self.attempts[name, sequence]
        if not attempts:
            return
        attempt = attempts[-1]
        values = [self._next_value(f"{topic}-{name}") for _ in range(count)]
        request = StageRequest(
            ref=self._ref(name, sequence, attempt),
            topic=topic,
            records=[Record.of(value, tag="x") for value in values],
            part=part or f"{topic}-{sum(map(len, attempt.values.values()))}",
        )

        def staged(outcome: object) -> None:
            if not isinstance(outcome, TopicsError):
                attempt.values.setdefault(topic, []).extend(values)

        self._ask(lambda: self.engine.transactions.stage(request, staged))

    def commit(self, name: str, sequence: int) -> None:
        attempts = self.attempts[name, sequence]
        if not attempts:
            return
        attempt = attempts[-1]

        def committed(outcome: object) -> None:
            if isinstance(outcome, TransactionResult):
                attempt.acked = attempt.acked or not outcome.deduped

        attempt.asked = True
        ref = self._ref(name, sequence, attempt)
        self._ask(lambda: self.engine.transactions.commit(ref, None, permit, committed))

    def abort(self, name: str, sequence: int) -> None:
        ref = self._ref(name, sequence, self.attempts[name, sequence][-1])
        self._ask(lambda: self.engine.transactions.abort(ref, lambda outcome: None))

    def _ref(self, name: str, sequence: int, attempt: Attempt) -> TransactionRef:
        return TransactionRef(id=name, sequence=sequence, attempt=attempt.name)

    def go_on(self) -> None:
        """A writer without an answer repeats the transaction."""
        super().go_on()
        for (name, sequence), attempts in list(self.attempts.items()):
            if not any(one.acked for one in attempts) and any(one.asked for one in attempts):
                topics = {topic: len(some) for one in attempts for topic, some in one.values.items()}
                known = self.engine.transactions.table.known.get(name)
                if known is not None and known.sequence > sequence:
                    continue
                self.begin(name, sequence)
                if not self.engine.transactions.table.open.get(name):
                    continue  # The commit is there, although its client got no answer.
                for topic, count in topics.items():
                    self.stage(name, sequence, topic, count)
                self.commit(name, sequence)

    # Forbidden states

    def also_broken(self, found: Dump, restarted: bool) -> Iterator[str]:
        yield from self.out_of_turn
        for name, topic in found.items():
            for seq in self.passed.get(topic.topic_id, set()) & topic.live.keys():
                yield f"{name}: {topic.live[seq]} came at {seq}, which readers had passed"
        for place, attempts in self.attempts.items():
            whole = []
            for attempt in attempts:
                there, gone = self._look(found, attempt)
                if there and gone:
                    yield f"{place}: of {attempt} there is {there}, and {gone} is not"
                if there and not attempt.asked:
                    yield f"{place}: {there} is there, and nobody asked for a commit of {attempt}"
                if attempt.acked and gone:
                    yield f"{place}: {gone} of {attempt} is missing, which was committed"
                if there:
                    whole.append(attempt)
            if len(whole) > 1:
                yield f"{place}: two attempts are there: {whole}"

    def _look(self, found: Dump, attempt: Attempt) -> tuple[list[object], list[object]]:
        """Returns the records of an attempt that are found, and the missing ones without those removed on purpose."""
        there: list[object] = []
        gone: list[object] = []
        removable = {
            self.published[topic_id][seq]
            for topic_id, seqs in self.removable.items()
            for seq in seqs
            if seq in self.published.get(topic_id, {})
        }
        for name, values in attempt.values.items():
            topic = found.get(name)
            if topic is None and attempt.acked and name not in self.gone:
                gone += values
            excused = topic is None or name in self.gone or topic.config.durability is Durability.EPHEMERAL
            live = {kept.value for kept in topic.live.values()} if topic is not None else set()
            for value in values:
                if value in live:
                    there.append(value)
                elif not excused and value not in removable:
                    gone.append(value)
        return there, gone
