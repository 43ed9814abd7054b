"""Transactions: the interface for the engine.

Transactions before their commit: begin, stage records, abort, expire.

Staged records are appended to the transaction log topic, in a frame with their destination. That topic is internal, so
a transaction is invisible before its commit.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from topics.engine.append import FrameExtension
from topics.engine.conditional_append import check_missing
from topics.engine.core import EngineCore
from topics.engine.quotas import check_room
from topics.engine.results import AppendResult, PutDone, PutResult
from topics.engine.topic import Topic
from topics.engine.topic_admin import wait_while_in_motion
from topics.engine.write_path import Change
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import (
    InvalidRequestError,
    NotAQueueError,
    ThrottledError,
    TopicNotFoundError,
    TopicsError,
    TransactionBusyError,
    TransactionFencedError,
    TransactionForeignError,
    TransactionIncompleteError,
    TransactionNotFoundError,
    TransactionSequenceError,
    TransactionTooLargeError,
    quoted,
)
from topics.model.records import Batch, payload_bytes
from topics.model.topic_config import (
    TopicConfigPatch,
    TopicType,
    check_topic_name,
    is_topic_name,
    parse_config,
    resolve_config,
)
from topics.queues.job_order import check_terms
from topics.transactions.commit import Commit
from topics.transactions.transaction_frames import (
    Begun,
    Ended,
    KnownState,
    PartState,
    Placed,
    Staged,
    encode_mark,
    encode_stage_head,
)
from topics.transactions.transaction_state import (
    BeginRequest,
    OpenTransaction,
    Permit,
    StageDone,
    StagedResult,
    StageRequest,
    TransactionDone,
    TransactionFeature,
    TransactionRef,
    TransactionResult,
    scoped,
    shown,
)
from topics.wire.preencoding import check_preencoded
from topics_protocol.transactions import Condition

Write = Callable[[Topic, Batch, Callable[[AppendResult | TopicsError], None], FrameExtension], None]

_ATTEMPT_BYTES = 8
_KNOWN_BYTES_MAX = 64 * 1024 * 1024
"""Maximum memory for known commits; beyond it new ids are refused."""


class _Stage:
    """The transaction part of a frame with staged records (`FrameExtension`)."""

    kind = FrameKind.TXN_STAGE
    creates = False

    def __init__(
        self, feature: TransactionFeature, staged: Staged, entry: OpenTransaction, count: int, size: int
    ) -> None:
        self._feature = feature
        self._staged = staged
        self._entry = entry
        self._count = count
        self._size = size
        self._first_seq = 0

    def staged(self, topic: Topic) -> None:
        self._first_seq = topic.staged_head - self._count + 1
        self._entry.expect(1, self._count, self._size)

    def prefix(self, topic: Topic) -> bytes:
        return encode_stage_head(self._staged)

    def applied(self, topic: Topic) -> None:
        self._entry.expect(-1, -self._count, -self._size)
        feature = self._feature
        feature.drop(topic, feature.table.stage(self._staged, self._first_seq, self._count, self._size))

    def undone(self, topic: Topic, error: TopicsError) -> None:
        self._entry.expect(-1, -self._count, -self._size)


class Stager:
    def __init__(self, core: EngineCore, feature: TransactionFeature, write: Write) -> None:
        self._core = core
        self._feature = feature
        self._table = feature.table
        self._write = write

    # Begin

    def begin(self, request: BeginRequest, permit: Permit, done: TransactionDone) -> None:
        core, table = self._core, self._table
        core.check_accepting()
        check_name("id", request.id)
        if request.attempt is not None:
            check_name("attempt", request.attempt)
        known = table.known.get(request.name)
        if known is not None and known.sequence >= request.sequence:
            done(self.answer_known(known, request.sequence, permit))
            return
        entry = table.open.get(request.name)
        if entry is not None:
            check_owner(entry, request.owner)
            if entry.committing is not None:
                raise TransactionBusyError(request.id)
            if request.sequence < entry.sequence:
                raise TransactionFencedError(request.id, entry.sequence)
            if request.attempt is not None and entry.is_meant(request.sequence, request.attempt):
                self._touch(entry)
                done(self.describe(entry))
                return
        else:
            self._check_room(request)

        self._feature.with_topic(lambda topic: self._begin(topic, request, done))

    def _begin(self, topic: Topic | TopicsError, request: BeginRequest, done: TransactionDone) -> None:
        if isinstance(topic, TopicsError):
            done(topic)
            return
        core, limits = self._core, self._core.limits
        attempt = request.attempt if request.attempt is not None else core.entropy.token(_ATTEMPT_BYTES).hex()
        timeout_ms = min(request.timeout_ms or limits.transaction_timeout_ms, limits.transaction_timeout_ms)
        begun = Begun(request.name, request.sequence, attempt, request.owner, timeout_ms, core.wall())

        def begin(timing: CommitTiming) -> None:
            self._feature.drop(topic, self._table.begin(begun))
            entry = self._table.open[request.name]
            self._touch(entry)
            done(self.describe(entry))

        self._log(topic, FrameKind.TXN_BEGIN, begun, begin, done)

    def _check_room(self, request: BeginRequest) -> None:
        limits, table = self._core.limits, self._table
        if limits.max_transactions and table.open_of(request.owner) >= limits.max_transactions:
            raise ThrottledError.over_cap("max_transactions", limits.max_transactions)
        if request.name not in table.known:
            ids = len(table.known.keys() | table.open.keys())
            if ids >= limits.max_transaction_ids or table.known_bytes > _KNOWN_BYTES_MAX:
                raise ThrottledError.over_cap("max_transaction_ids", limits.max_transaction_ids)
            most = limits.max_transaction_ids_per_key
            if most and request.tenant and table.ids_of(request.tenant) >= most:
                raise ThrottledError.over_cap("max_transaction_ids_per_key", most)

    # Stage

    def stage(self, request: StageRequest, done: StageDone, prepared: object = None) -> None:
        """`prepared` is the result of the topic's guard, if it postponed the records before."""
        core = self._core
        core.check_accepting()
        check_name("part", request.part)
        check_topic_name(request.topic)
        entry = self.find(request.ref)
        if entry.committing is not None:
            raise TransactionBusyError(shown(entry.id))
        check_preencoded(request.records, core.limits, request.node)
        if request.terms is not None:
            check_terms(request.terms, core.wall())
        count, size = len(request.records), payload_bytes(request.records)
        self._check_limits(entry, request.part, count, size)
        room = core.quotas.room(request.topic) if core.metered else None
        if room is not None and size > room:
            raise core.quotas.over_bytes()
        if self._postponed(request, count, size, done, prepared):
            return
        topic = self._feature.topic
        assert topic is not None, "an open transaction without the topic that keeps it"
        core.path.check_fits(topic, request.records)
        config = None if request.config is None else msgspec.json.encode(request.config)
        staged = Staged(
            entry.id, entry.sequence, entry.attempt, request.part, request.topic, core.wall(), request.create, config,
            request.terms,
        )  # fmt: skip

        def written(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                done(outcome)
            else:
                self._touch(entry)
                done(
                    StagedResult(
                        id=shown(entry.id), sequence=entry.sequence, attempt=entry.attempt, part=request.part,
                        topic=request.topic, count=count, records=entry.records, bytes=entry.bytes,
                    )
                )  # fmt: skip

        batch = Batch(records=request.records, node=request.node)
        self._write(topic, batch, written, _Stage(self._feature, staged, entry, count, size))

    def _check_limits(self, entry: OpenTransaction, part: str, count: int, size: int) -> None:
        limits = self._core.limits
        old = entry.parts.get(part)
        if old is None and len(entry.parts) + entry.inflight >= limits.max_transaction_parts:
            raise TransactionTooLargeError("parts", limits.max_transaction_parts)
        if entry.records + entry.inflight_records + count - (old.count if old else 0) > limits.max_transaction_records:
            raise TransactionTooLargeError("records", limits.max_transaction_records)
        grown = size - (old.size if old else 0)
        if entry.bytes + entry.inflight_bytes + grown > limits.max_transaction_bytes:
            raise TransactionTooLargeError("bytes", limits.max_transaction_bytes)
        if limits.max_staged_bytes and self._table.staged_bytes(entry.owner) + grown > limits.max_staged_bytes:
            raise ThrottledError.over_cap("max_staged_bytes", limits.max_staged_bytes)

    def _postponed(self, request: StageRequest, count: int, size: int, done: StageDone, prepared: object) -> bool:
        """Refuses records that a commit would certainly refuse; the commit checks again.

        Returns whether the topic postpones the records until it has validated all of them.
        """
        core = self._core
        topic = core.directory.find(request.topic)
        if is_missing(topic):
            check_creatable(request.topic, request.create, request.config)
            if request.terms is not None and (request.config is None or request.config.type is not TopicType.QUEUE):
                raise NotAQueueError(request.topic)
            return False
        assert topic is not None
        if request.terms is not None and topic.staged_config.type is not TopicType.QUEUE:
            raise NotAQueueError(request.topic)
        if topic.guard is not None:
            if topic.guard.postpones(
                topic, request.records, prepared, lambda ready: self._stage_again(request, done, ready)
            ):
                return True
            core.path.admit(topic, lambda: request.records, prepared=prepared)
        core.path.check(topic, patient=True)
        config = topic.staged_config
        if topic.rules.rejects and (
            (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes)
        ):
            # It could not fit even if the topic were empty.
            check_room(topic, count, size, 0, 0)
        return False

    def _stage_again(self, request: StageRequest, done: StageDone, prepared: object) -> None:
        """Stages records that the topic's guard had postponed. Errors go to the callback: the caller has returned."""
        try:
            self.stage(request, done, prepared)
        except TopicsError as error:
            done(error)

    def _touch(self, entry: OpenTransaction) -> None:
        entry.touched_ms = self._core.wall()
        entry.deadline = self._core.steady() + entry.timeout_ms

    # End

    def abort(self, ref: TransactionRef, done: TransactionDone) -> None:
        self._core.check_accepting()
        entry = self.find(ref)
        if entry.committing is not None:
            raise TransactionBusyError(shown(entry.id))
        self.end(entry, done)

    def end(self, entry: OpenTransaction, done: TransactionDone) -> None:
        """Ends an attempt and releases its staged records."""
        topic = self._feature.topic
        assert topic is not None
        ended = Ended(entry.id, entry.sequence, entry.attempt)

        def end(timing: CommitTiming) -> None:
            self._feature.drop(topic, self._table.end(ended))
            done(TransactionResult(id=shown(entry.id), sequence=entry.sequence, state="aborted", attempt=entry.attempt))

        self._log(topic, FrameKind.TXN_END, ended, end, done)

    def _log(
        self, topic: Topic, kind: FrameKind, mark: object, applied: Callable[[CommitTiming], None],
        failed: Callable[[TopicsError], None],
    ) -> None:  # fmt: skip
        path = self._core.path
        # Staged records can be released on a full disk, too.
        path.check(topic, frees=kind is FrameKind.TXN_END)
        path.log(Change(path, topic, ((kind, encode_mark(mark), b""),), applied, failed))

    # State

    def find(self, ref: TransactionRef) -> OpenTransaction:
        """Returns the requested open transaction."""
        if not is_topic_name(ref.id):
            raise TransactionNotFoundError(ref.id)
        entry = self._table.open.get(ref.name)
        known = self._table.known.get(ref.name)
        if entry is None:
            if known is not None and ref.sequence <= known.sequence:
                raise TransactionSequenceError(ref.id, ref.sequence, known.sequence)
            raise TransactionNotFoundError(ref.id)
        check_owner(entry, ref.owner)
        if entry.sequence != ref.sequence or (ref.attempt is not None and entry.attempt != ref.attempt):
            raise TransactionFencedError(ref.id, entry.sequence)
        return entry

    def describe(self, entry: OpenTransaction) -> TransactionResult:
        return TransactionResult(
            id=shown(entry.id), sequence=entry.sequence, state="open", attempt=entry.attempt, parts=len(entry.parts),
            records=entry.records, bytes=entry.bytes, expires_ts=self._core.time.wall_time(entry.deadline),
        )  # fmt: skip

    def answer_known(self, known: KnownState, sequence: int, permit: Permit) -> TransactionResult:
        """The answer to a repeated request whose sequence is already committed."""
        if sequence < known.sequence:
            raise TransactionSequenceError(shown(known.id), sequence, known.sequence)
        for placed in known.placed:
            permit(placed.topic)
        return TransactionResult(
            id=shown(known.id), sequence=known.sequence, state="committed", deduped=True, topics=known.placed,
            records=sum([placed.count for placed in known.placed]),
        )  # fmt: skip


def check_owner(entry: OpenTransaction, owner: str) -> None:
    if entry.owner != owner:
        raise TransactionForeignError(shown(entry.id))


def check_name(field: str, text: str) -> None:
    """Ids, attempts and parts follow the rules of topic names."""
    if not is_topic_name(text):
        raise InvalidRequestError(
            f"{field}: 1 to 255 of A-Z a-z 0-9 . _ : - beginning with a letter or digit", field=field
        )


def is_missing(topic: Topic | None) -> bool:
    """Returns whether a commit would have to create the topic."""
    return topic is None or topic.closing


def check_creatable(name: str, create: bool | None, patch: TopicConfigPatch | None) -> None:
    config = resolve_config(patch or TopicConfigPatch(), name, None)
    if not (config.auto_create if create is None else create):
        raise TopicNotFoundError(name)


PutTopic = Callable[[str, TopicConfigPatch, PutDone], None]


class Transactions:
    def __init__(self, core: EngineCore, write: Write, put_topic: PutTopic) -> None:
        self._core = core
        self._feature = TransactionFeature(core)
        self.table = self._feature.table
        self._stager = Stager(core, self._feature, write)
        self._put_topic = put_topic
        self._queue: deque[tuple[OpenTransaction, list[PartState], Mapping[str, Condition]]] = deque()
        self._running = False
        self.commits = 0
        """The number of commits since the start."""
        self.aborts = 0
        core.second_passed.subscribe(self.tick)

    def begin(self, request: BeginRequest, permit: Permit, done: TransactionDone) -> None:
        """Begins an attempt, which replaces any other of the id, or joins it.

        A committed transaction is only reported.
        """
        self._stager.begin(request, permit, done)

    def stage(self, request: StageRequest, done: StageDone) -> None:
        """Stages records for a topic until the commit. A part that is staged again is replaced."""
        self._stager.stage(request, done)

    def abort(self, ref: TransactionRef, done: TransactionDone) -> None:
        """Ends a transaction and releases its staged records."""

        def ended(outcome: TransactionResult | TopicsError) -> None:
            self.aborts += not isinstance(outcome, TopicsError)
            done(outcome)

        self._stager.abort(ref, ended)

    def find(self, transaction_id: str, owner: str, permit: Permit, tenant: str = "") -> TransactionResult:
        """Returns the state of a transaction: the open one, otherwise the last commit."""
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
        """Ends abandoned transactions, and drops old commits."""
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

    # Commit

    def commit(
        self,
        ref: TransactionRef,
        parts: Sequence[str] | None,
        permit: Permit,
        done: TransactionDone,
        conditions: Mapping[str, Condition] | None = None,
    ) -> None:
        """Makes all staged records visible at once, or only the given parts, in their order, if the topics meet
        `conditions`.

        A repeated commit with a committed sequence is answered as before, and nothing changes.
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
        expected = dict(conditions or {})
        for name in expected.keys() - {part.topic for part in firsts}:
            raise InvalidRequestError(
                f"conditions: the commit appends nothing to topic {quoted(name)}", field="conditions", topic=name
            )
        for name, condition in expected.items():
            if self._core.directory.find(name) is None:
                # Refused before the topic is created.
                check_missing(name, condition.expected_head_seq, condition.fence)
        entry.committing = [done]
        self._make(firsts, entry, chosen, expected)

    def _make(
        self,
        requested: list[PartState],
        entry: OpenTransaction,
        parts: list[PartState],
        conditions: Mapping[str, Condition],
    ) -> None:
        """Creates missing topics, one after the other, then commits.

        `requested` has the first part of each topic that was not checked yet: a topic that another client creates
        meanwhile keeps its config.
        """
        core = self._core
        again, failed = partial(self._make, requested, entry, parts, conditions), partial(self._answer, entry)

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
        self._queue.append((entry, parts, conditions))
        self._next()

    def _next(self) -> None:
        """One at a time: the next begins when the previous one is decided."""
        if self._running or not self._queue:
            return
        self._running = True
        entry, parts, conditions = self._queue.popleft()

        def finished(outcome: list[Placed] | TopicsError) -> None:
            self._running = False
            self._answer(entry, outcome)
            self._next()

        Commit(self._core, self._feature, entry.id, entry.sequence, parts, finished, conditions).start()

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
    """Returns the config for the topic of a part. Raises if it may not be created."""
    patch = parse_config(part.config or b"")
    check_creatable(part.topic, part.create, patch)
    return patch
