"""Records as clients and embedded readers see them: to append, as read, as jobs, and the gaps between them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_SHOWN_CHARS_MAX = 200


class NewRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record to append that is more than its value.

    `data` is anything that msgspec can encode as JSON; wrapped in `msgspec.Raw`, JSON text is sent as it stands. NaN
    and the infinities are refused: JSON has no word for them.
    """

    data: Any
    tag: str | None = None
    """A label that deletes can match."""
    node: str | None = None
    """The writer: a reader with the same node does not get the record back."""
    meta: Mapping[str, object] | None = None
    """Small headers, given back as they are."""


class Record(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A record that was read. Its payload is decoded when it is first used.

    It keeps the whole answer in memory, of which it is a slice; to keep a few records of many, keep their `data`.
    """

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    """When it was committed: milliseconds since 1970."""
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    """Only there when the read asked for tags."""
    payload: msgspec.Raw = msgspec.field(name="data", default=msgspec.Raw(b"null"))
    """Null when the reader asked for records without their data."""
    meta: dict[str, Any] | None = None

    @cached_property
    def data(self) -> Any:
        """The payload as Python values."""
        return msgspec.json.decode(self.payload)

    @property
    def raw(self) -> bytes:
        """The payload as the JSON text that the writer sent, byte for byte."""
        return bytes(self.payload)

    def decode(self, type: type[T]) -> T:
        """The payload as a value of this type; raises `msgspec.ValidationError` when it is none."""
        return msgspec.json.decode(self.payload, type=type)

    def __repr__(self) -> str:
        text = self.raw.decode("utf-8", "replace")
        shown = text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"
        rest = {name: getattr(self, name) for name in self.__struct_fields__ if name != "payload"}
        words = [f"{name}={value!r}" for name, value in rest.items() if value is not None]
        return f"{type(self).__name__}({', '.join([words[0], f'data={shown}', *words[1:]])})"


class Job(Record, frozen=True, kw_only=True, dict=True):
    """A job that was claimed: a record, and the lease on it."""

    lease_id: str
    """This delivery's own word: with it, an acknowledgement counts only while the job is still this worker's."""
    deadline: int
    """When the lease ends unless it is extended: milliseconds since 1970."""
    deliveries: int
    """How often the job has been delivered, this time included."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Records that were lost before they were read, and that nobody asked to remove. Both ends are included."""

    gap_from: int
    gap_to: int
    """Below `gap_from` where a topic was deleted and made again, and is still empty."""
    reason: str
    """`cap`, `ttl`, `mixed`, `recreated`, `source_trim`, `crash` or `corrupt`; a newer server may know more."""
    missed_estimate: int
    """How many of the seqs in the range were records, as far as the server knows."""
    earliest_seq: int
    head_seq: int
