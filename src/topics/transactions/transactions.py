"""Transactions: the interface for the engine."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from topics.engine.core import EngineCore
from topics.engine.results import PutDone, PutResult
from topics.engine.topic_admin import wait_while_in_motion
from topics.model.errors import TopicsError, TransactionIncompleteError, TransactionNotFoundError
from topics.model.names import is_topic_name
from topics.model.topic_config import TopicConfigPatch, parse_config
from topics.transactions.commit import Commit
from topics.transactions.staging import Stager, Write, check_creatable, check_owner, is_missing
from topics.transactions.transaction_frames import PartState, Placed
from topics.transactions.transaction_state import (
    BeginRequest,
    OpenTransaction,
    Permit,
    StageDone,
    StageRequest,
    TransactionDone,
    TransactionFeature,
    TransactionRef,
    TransactionResult,
    scoped,
    shown,
)

PutTopic = Callable[[str, TopicConfigPatch, PutDone], None]


class Transactions:
    def __init__(self, core: EngineCore, write: Write, put_topic: PutTopic) -> None:
        self._core = core
        self._feature = TransactionFeature(core)
        self.table = self._feature.table
        self._stager = Stager(core, self._feature, write)
        self._put_topic = put_topic
        self._queue: deque[tuple[OpenTransaction, list[PartState]]] = deque()
        self._running = False
        self.commits = 0
        """How many were committed since the start."""
        self.aborts = 0
        core.second_passed.subscribe(self.tick)

    def begin(self, request: BeginRequest, permit: Permit, done: TransactionDone) -> None:
        """Begins an attempt in the place of any other of the id, or joins it. One that is committed is only told."""
        self._stager.begin(request, permit, done)

    def stage(self, request: StageRequest, done: StageDone) -> None:
        """Keeps records for a topic until the transaction is committed. A part that is staged again is replaced."""
        self._stager.stage(request, done)

    def abort(self, ref: TransactionRef, done: TransactionDone) -> None:
        """Ends a transaction and lets go of what is staged."""

        def ended(outcome: TransactionResult | TopicsError) -> None:
            self.aborts += not isinstance(outcome, TopicsError)
            done(outcome)

        self._stager.abort(ref, ended)

    def find(self, transaction_id: str, owner: str, permit: Permit, tenant: str = "") -> TransactionResult:
        """A transaction as it stands: the open one, or else what was committed last."""
        if not is_topic_name(transaction_id):
            raise TransactionNotFoundError(transaction_id)
        name = scoped(tenant, transaction_id)
        entry = self.table.open.get(name)
        if entry is not None:
            check_owner(entry, owner)
            return self._stager.describe(entry)
        known = self.table.known.get(name)
        if known is None:
            raise TransactionNotFoundError(transaction_id)
        return self._stager.answer_known(known, known.sequence, permit)

    def tick(self) -> None:
        """Ends what is abandoned, and forgets what is old."""
        core, table, now = self._core, self.table, self._core.steady()
        topic = self._feature.topic
        if core.closed or topic is None:
            return
        for entry in list(table.open.values()):
            idle = entry.committing is None and not entry.inflight
            if idle and now >= entry.deadline and core.path.takes_notes(topic):
                self.aborts += 1
                self._stager.end(entry, lambda outcome: None)
        oldest = core.wall() - core.limits.transaction_retention_ms
        old = [known.id for known in table.known.values() if known.now_ms < oldest]
        if old:
            core.before_change(topic)
        for transaction_id in old:
            table.forget(transaction_id)

    # Committing

    def commit(self, ref: TransactionRef, parts: Sequence[str] | None, permit: Permit, done: TransactionDone) -> None:
        """Makes all that is staged visible at once, or only the parts that are named, in their order.

        Whoever comes again with a sequence that is committed is told so, and nothing changes.
        """
        self._core.check_accepting()
        known = self.table.known.get(ref.name) if is_topic_name(ref.id) else None
        if known is not None and known.sequence >= ref.sequence:
            done(self._stager.answer_known(known, ref.sequence, permit))
            return
        entry = self._stager.find(ref)
        if entry.committing is not None:
            entry.committing.append(done)
            return
        chosen = _choose(entry, parts)
        for name in {part.topic for part in chosen}:
            permit(name)
        firsts = list({part.topic: part for part in reversed(chosen)}.values())
        for part in firsts:
            if is_missing(self._core.directory.find(part.topic)):
                _config_of(part)
        entry.committing = [done]
        self._make(firsts, entry, chosen)

    def _make(self, requested: list[PartState], entry: OpenTransaction, parts: list[PartState]) -> None:
        """Makes the topics that are missing, one after the other, then commits. `requested` has the first part of each
        topic that was not looked at yet: who else makes one meanwhile gives it its config."""
        core = self._core
        again, failed = partial(self._make, requested, entry, parts), partial(self._answer, entry)

        def made(outcome: PutResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                failed(outcome)
            else:
                again()

        try:
            while requested:
                part = requested[-1]
                topic = core.directory.find(part.topic)
                if topic is None:
                    self._put_topic(part.topic, _config_of(part), made)
                    return
                if wait_while_in_motion(core, topic, again, failed):
                    return
                requested.pop()
        except TopicsError as error:
            failed(error)
            return
        self._queue.append((entry, parts))
        self._next()

    def _next(self) -> None:
        """One at a time: the next begins when the one before is decided."""
        if self._running or not self._queue:
            return
        self._running = True
        entry, parts = self._queue.popleft()

        def finished(outcome: list[Placed] | TopicsError) -> None:
            self._running = False
            self._answer(entry, outcome)
            self._next()

        Commit(self._core, self._feature, entry.id, entry.sequence, parts, finished).start()

    def _answer(self, entry: OpenTransaction, outcome: list[Placed] | TopicsError) -> None:
        waiting, entry.committing = entry.committing or [], None
        if isinstance(outcome, TopicsError):
            for done in waiting:
                done(outcome)
            return
        self.commits += 1
        result = TransactionResult(
            id=shown(entry.id), sequence=entry.sequence, state="committed", topics=outcome,
            records=sum([placed.count for placed in outcome]),
        )  # fmt: skip
        for number, done in enumerate(waiting):
            done(msgspec.structs.replace(result, deduped=True) if number else result)


def _choose(entry: OpenTransaction, names: Sequence[str] | None) -> list[PartState]:
    if names is None:
        return list(entry.parts.values())
    requested = dict.fromkeys(names)
    missing = [name for name in requested if name not in entry.parts]
    if missing:
        raise TransactionIncompleteError(shown(entry.id), missing)
    return [entry.parts[name] for name in requested]


def _config_of(part: PartState) -> TopicConfigPatch:
    """The config for the topic of a part. Raises if it may not be created."""
    patch = parse_config(part.config or b"")
    check_creatable(part.topic, part.create, patch)
    return patch
