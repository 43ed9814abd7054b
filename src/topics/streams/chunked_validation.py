"""Stream contracts as values, and validation of large batches in portions.

`Description` has the contract of a stream's entries (schema, profile, routing key); it is compiled on first use.
`ChunkedValidator` checks large batches against it as tasks of the fair scheduler.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from topics.engine.core import EngineCore
from topics.engine.topic import Topic
from topics.model.bounded_cache import HolderCache
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.limits import MIB
from topics.model.records import Record
from topics.schema.contract import Contract, Intake, decode_contract, encode_contract
from topics.schema.documents import MAX_PORTION
from topics.schema.registry import Promoter, Registry
from topics.system.fair_scheduler import Task
from topics.wire.preencoding import Preencoded, PreencodedBatch

COMPILED = HolderCache(128 * MIB)
"""Compiled validators and lenses of all streams of the process: a pattern of ten characters can take 400 kB."""
REASON = "schema"
"""The `detail` of a refusal for entries that do not meet the contract."""


class Description:
    """An installed contract. Immutable: an update creates another one. The compiled schema is kept within `COMPILED`
    and compiled again when it is needed after it was evicted."""

    def __init__(self, contract: Contract, raw: bytes = b"") -> None:
        self.contract = contract
        self._intake: Intake | None = None
        self._is_kept = False
        self.raw = raw or encode_contract(contract)
        """The encoding in the log and in snapshots."""

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> "Description":
        """Decodes a stored contract. Raises ValueError for bytes that no version of this server wrote."""
        return cls(decode_contract(raw), bytes(raw))

    @property
    def intake(self) -> Intake:
        if self._intake is None:
            self._intake = Intake(self.contract)
        self._use()
        return self._intake

    def _use(self) -> None:
        if self._is_kept:
            COMPILED.used(self)
        else:
            self._is_kept = True
            COMPILED.keep(self, self.contract.registry.compiled_bytes)

    def forget(self) -> None:
        self._intake, self._is_kept = None, False
        self.contract.registry.forget_compiled()

    @property
    def promoter(self) -> Promoter | None:
        """Promotes entries of earlier schema versions; None if there are none."""
        registry = self.contract.registry
        if registry.current_version <= 1:
            return None
        promoter = registry.promoter
        self._use()
        return promoter

    @property
    def has_routing_key(self) -> bool:
        return self.contract.registry.routing_key is not None

    @cached_property
    def is_searched(self) -> bool:
        """Whether the contract has a search description."""
        return self.contract.registry.search is not None

    def upto(self, count: int) -> "Description":
        """Returns the contract that a fork inherits: the versions that existed at its fork point."""
        registry = self.contract.registry
        versions = tuple(version for version in registry.versions if version.boundary <= count)
        if len(versions) == len(registry.versions):
            return self
        return Description(Contract(Registry(versions, registry.routing_key, registry.search), self.contract.profile))

    def unpack(self, records: Sequence[Record]) -> list[Record]:
        """The records of an append; one of them may become several."""
        records = list(records)
        unpacked = self.contract.profile.unpack([record.data for record in records])
        # All records of a request have the same key.
        return records if unpacked is None else [Record(data, records[0].tag) for data in unpacked]

    def admit(self, records: Sequence[Record], now_ms: int, moved: bool) -> Sequence[Record] | None:
        """Returns the records in their stored form, None if they are stored unchanged, or a refusal of the whole batch
        with the first invalid record.

        If the stream derives routing keys from its entries, records must not have a tag. The tag of `moved` records
        belongs to another topic and is replaced.
        """
        if self.has_routing_key and not moved:
            _refuse_tags(records)
        return self._admit(records, now_ms)

    def is_large(self, records: Sequence[Record]) -> bool:
        """Whether validating these records takes too long for one turn of the loop."""
        return len(records) > MAX_PORTION or self.intake.portion([record.data for record in records]) < len(records)

    def admit_portion(self, records: Sequence[Record], begin: int, now_ms: int) -> Sequence[Record]:
        """Validates the next chunk of a batch like `admit`; called until no chunk is left."""
        if self.has_routing_key and not begin:
            _refuse_tags(records)
        rest = records[begin : begin + MAX_PORTION]
        part = rest[: self.intake.portion([record.data for record in rest])]
        try:
            return self._admit(part, now_ms) or part
        except InvalidRequestError as error:
            index = error.detail.get("index")
            if isinstance(index, int):
                error.detail["index"] = begin + index
            raise

    def admit_all(self, records: Sequence[Record], now_ms: int) -> Sequence[Record]:
        """Like `admit`, for all records at once, without yielding."""
        admitted: list[Record] = []
        while len(admitted) < len(records):
            admitted += self.admit_portion(records, len(admitted), now_ms)
        return admitted

    def _admit(self, records: Sequence[Record], now_ms: int) -> Sequence[Record] | None:
        try:
            taken = self.intake.take([record.data for record in records], now_ms=now_ms)
        except InvalidRequestError as error:
            error.detail.setdefault("reason", REASON)
            raise
        tags: Sequence[str | None] = [record.tag for record in records]
        if taken.keys is not None and self.has_routing_key:
            tags = taken.keys
        elif taken.keys is not None:
            tags = [key if tag is None else tag for key, tag in zip(taken.keys, tags, strict=True)]
        pairs = zip(taken.payloads, tags, records, strict=True)
        if all([payload is record.data and tag == record.tag for payload, tag, record in pairs]):
            return None
        pairs = zip(taken.payloads, tags, records, strict=True)
        return [Record(payload, tag, record.node, record.meta) for payload, tag, record in pairs]


def check_own_key(description: Description, key: str | None) -> None:
    """Refuses an explicit key if the routing key comes from the entries."""
    if key is not None and description.has_routing_key:
        raise InvalidRequestError(
            "Stream-Key not allowed when routingKey is configured", field="Stream-Key", reason=REASON
        )


def is_schema_refusal(error: Exception) -> bool:
    """Whether records were refused because of their content."""
    return isinstance(error, InvalidRequestError) and error.detail.get("reason") == REASON


def _refuse_tags(records: Sequence[Record]) -> None:
    for index, record in enumerate(records):
        if record.tag is not None:
            raise InvalidRequestError(
                f"records[{index}].tag: not allowed when routingKey is configured",
                field=f"records[{index}].tag", index=index, reason=REASON,
            )  # fmt: skip


# Validation of large batches in portions.
#
# Checking 100,000 entries against a schema takes half a second. The batch is validated as a task of the fair scheduler,
# which returns the records to store after the last portion. Only then it is decided, like a new request; if the stream
# has another schema by then, it is validated again. Later requests for the same stream wait, so that the order of the
# requests is the order of the log.

_PREENCODED_RECORDS = 4_000
"""Batches with more records are encoded in portions as well: it takes some milliseconds."""


class Prepared(NamedTuple):
    """Validated records in their stored form, or the reason of their refusal."""

    description: Description
    records: Sequence[Record]
    refusal: TopicsError | None = None


Retry = Callable[[Prepared | None], None]
"""Retries with the prepared records, or with None if it only waited for its turn."""


class ChunkedValidator:
    """Validates large batches, one at a time for each stream."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._waiting: dict[Topic, deque[Retry]] = {}
        """The requests that wait for a batch, by stream."""

    def waits(self, topic: Topic, retry: Retry) -> bool:
        """Returns whether a batch of the stream is being validated; then `retry` is called at its end."""
        line = self._waiting.get(topic)
        if line is None:
            return False
        line.append(retry)
        return True

    def is_busy(self, topic: Topic) -> bool:
        """Returns whether a request would have to wait."""
        return topic in self._waiting

    def begin(self, topic: Topic, description: Description, records: Sequence[Record], retry: Retry) -> None:
        """Validates a batch, and calls back with the outcome."""
        self._waiting.setdefault(topic, deque())
        task = self._validate(topic, description, records, self._core.wall(), retry)
        self._core.fair_scheduler.run(task, topic)

    def _validate(
        self, topic: Topic, description: Description, records: Sequence[Record], now_ms: int, retry: Retry
    ) -> Task:
        admitted: list[Record] = []
        refusal: TopicsError | None = None
        try:
            admitted += description.admit_portion(records, 0, now_ms)
            while len(admitted) < len(records):
                yield None
                admitted += description.admit_portion(records, len(admitted), now_ms)
        except TopicsError as error:
            refusal = error
        prepared: Sequence[Record] = admitted
        if refusal is None and len(admitted) > _PREENCODED_RECORDS:
            ts = max(self._core.wall(), topic.staged_ts)
            batch = PreencodedBatch(admitted, topic.staged_head + 1, ts, None)
            while not batch.step():
                yield None
            prepared = Preencoded(admitted, batch)
        self._finish(topic, lambda: retry(Prepared(description, prepared, refusal)))

    def _finish(self, topic: Topic, first: Callable[[], None]) -> None:
        """Continues the batch, and then the waiting requests, until one of them must be validated as well."""
        line = self._waiting.pop(topic)
        first()
        while line:
            if topic in self._waiting:
                self._waiting[topic].extend(line)
                return
            line.popleft()(None)
