"""What a stream promises about its entries, as writers and readers meet it: kept as one value, compiled when needed."""

from collections.abc import Sequence
from functools import cached_property

from topics.core.errors import InvalidRequestError
from topics.core.records import Record
from topics.schema.contract import Contract, decode_contract, encode_contract
from topics.schema.intake import Intake
from topics.schema.limits import MAX_PORTION
from topics.schema.promotion import Promoter
from topics.schema.registry import Registry

REASON = "schema"
"""What the detail of a refusal says where entries are not what their stream promises."""


class Description:
    """A contract that somebody installed. It never changes: an update makes another one."""

    def __init__(self, contract: Contract, raw: bytes = b"") -> None:
        self.contract = contract
        self.raw = raw or encode_contract(contract)
        """As it is in the log and in snapshots."""

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> "Description":
        """Raises ValueError for what no version of this server wrote."""
        return cls(decode_contract(raw), bytes(raw))

    @cached_property
    def intake(self) -> Intake:
        return Intake(self.contract)

    @property
    def promoter(self) -> Promoter | None:
        """How entries of earlier versions are shown; None where there are none."""
        registry = self.contract.registry
        return registry.promoter if registry.current_version > 1 else None

    @property
    def has_routing_key(self) -> bool:
        return self.contract.registry.routing_key is not None

    @cached_property
    def is_searched(self) -> bool:
        """Whether there is a search description."""
        return self.contract.registry.search is not None

    def upto(self, count: int) -> "Description":
        """What a fork that begins behind so many entries inherits: the versions that were there by then."""
        registry = self.contract.registry
        versions = tuple(version for version in registry.versions if version.boundary <= count)
        if len(versions) == len(registry.versions):
            return self
        return Description(Contract(Registry(versions, registry.routing_key, registry.search), self.contract.profile))

    def unpack(self, records: Sequence[Record]) -> list[Record]:
        """The records of an append, where some of them may stand for several."""
        records = list(records)
        unpacked = self.contract.profile.unpack([record.data for record in records])
        # All of a request have the same key, and nothing else.
        return records if unpacked is None else [Record(data, records[0].tag) for data in unpacked]

    def admit(self, records: Sequence[Record], now_ms: int, moved: bool) -> Sequence[Record] | None:
        """The records as they are to be stored, None where that is as they are; or a refusal of all of them that names
        the first that is wrong.

        Records that a writer brings must leave their tag to the stream where it takes keys out of its entries. Those
        that were `moved` here had theirs for another topic: it is replaced.
        """
        if self.has_routing_key and not moved:
            _refuse_tags(records)
        return self._admit(records, now_ms)

    def is_large(self, records: Sequence[Record]) -> bool:
        """Whether to look at these records takes longer than anybody should wait for it."""
        return len(records) > MAX_PORTION or self.intake.portion([record.data for record in records]) < len(records)

    def admit_portion(self, records: Sequence[Record], begin: int, now_ms: int) -> Sequence[Record]:
        """The next few of the records that a writer brings, as `admit` has them; it is called until there are none."""
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
        """As `admit`, for as many records as there are, with nobody having a turn in between."""
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


def is_schema_refusal(error: Exception) -> bool:
    """Whether records were refused for what is in them."""
    return isinstance(error, InvalidRequestError) and error.detail.get("reason") == REASON


def _refuse_tags(records: Sequence[Record]) -> None:
    for index, record in enumerate(records):
        if record.tag is not None:
            raise InvalidRequestError(
                f"records[{index}].tag: not allowed when routingKey is configured",
                field=f"records[{index}].tag", index=index, reason=REASON,
            )  # fmt: skip
