"""A record as a writer hands it in, and the checks a batch passes before anything else happens to it.

`data` and `meta` are the JSON text the writer sent, byte for byte. They are cut out of the request, never parsed and
never encoded again: reading back gives what was written, down to the spelling of a number.

Two things follow from msgspec's `Raw`, and both are the caller's duty: the text inside a `Raw` may be invalid UTF-8, so
a request body is checked once as a whole; and a `Raw` keeps the whole body alive, so small parts that stay are copied.

The fragment, which is a record as it is stored, and the row that states where its parts are.

A text holds records as the fragments a JSON answer is made of, with a comma between two of them:

    {"$seq":7,"$ts":1748470000123,"$node":"a","data":DATA,"meta":META,"$tag":"t"}

so that reading is slicing. `$node`, `meta` and `$tag` are there only when the record has them. A row states where a
fragment's parts are, in little endian:

    offset  size  field
         0     4  start of the fragment in the text coordinate
         4     4  length of the meta part, `,"meta":META`, or 0
         8     2  length of the tag part, `,"$tag":"t"`, or 0
        10     2  length of the head, from `{` up to the first byte of DATA

Rows count in the topic's running text coordinate and not from a block's own beginning: blocks that follow each other
are put into one segment by joining their texts with commas and their rows as they are, with no arithmetic per record.

This is all that the formats of files and the encoders of answers have to agree about.
"""

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self, overload

import msgspec

from topics.model.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from topics.model.limits import MAX_PRIORITY, MIN_PRIORITY, Limits
from topics.model.topic_config import TopicConfigPatch

if TYPE_CHECKING:
    RawJson = msgspec.Raw | bytes
    OptionalRawJson = msgspec.Raw | bytes | None
else:
    # The decoder must see plain `Raw`: as a member of a union it would not capture the text. Python code may pass
    # bytes all the same, because nothing here cares which of the two it holds.
    RawJson = msgspec.Raw
    OptionalRawJson = msgspec.Raw


class Record(msgspec.Struct, gc=False):
    """One record of a batch. Decoding fails where `data` is missing; a `data` of null is the text `null`."""

    data: RawJson
    tag: str | None = None
    node: str | None = None
    meta: OptionalRawJson = None

    @classmethod
    def of(
        cls,
        value: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, object] | None = None,
    ) -> Self:
        """A record of a Python value. NaN and the infinities become null, since JSON has no word for them."""
        encoded_meta = None if meta is None else msgspec.Raw(msgspec.json.encode(meta))
        return cls(msgspec.Raw(msgspec.json.encode(value)), tag, node, encoded_meta)


class PlainRecords(NamedTuple):
    """The data of a batch without anything else, and how long each is: found by the check, used by the encoder."""

    datas: list[msgspec.Raw | bytes]
    sizes: list[int]


class Values(Sequence[Record]):
    """A batch of records that consist of data only. Record objects are created on demand."""

    __slots__ = ("plain",)

    def __init__(self, datas: list[msgspec.Raw | bytes]) -> None:
        self.plain = PlainRecords(datas, list(map(len, datas)))

    def __len__(self) -> int:
        return len(self.plain.datas)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, self.plain.datas)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        found = self.plain.datas[index]
        return [Record(data) for data in found] if isinstance(found, list) else Record(found)


def find_plain(records: Sequence[Record]) -> PlainRecords | None:
    """The data of a batch in which no record has anything else; None where one has."""
    if type(records) is Values:
        # Checked for every batch: an abstract class would consult its registry each time.
        return records.plain
    datas = [r.data for r in records if r.tag is None and r.meta is None and r.node is None]
    return PlainRecords(datas, list(map(len, datas))) if len(datas) == len(records) else None


_META_DECODER: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_records(
    records: Sequence[Record], limits: Limits, batch_node: str | None = None, idempotency_key: str | None = None
) -> PlainRecords | None:
    """Raises for the first thing wrong with a batch, naming the record it is in; returns what `find_plain` does, if it
    had to look.

    The order is part of the behaviour: the batch as a whole, then its key and node, then record by record. A `meta` of
    null is the same as none, as it is for `tag` and `node`, and is set to None here.
    """
    if len(records) == 1 and batch_node is None and idempotency_key is None:
        # Most requests have one record with data only.
        record = records[0]
        if record.meta is None and record.tag is None and record.node is None:
            if len(record.data) > limits.max_record_bytes:
                _check_record(0, record, limits)
            return None
    check_batch(records, limits, batch_node, idempotency_key)
    plain = find_plain(records)
    if plain is not None and max(plain.sizes) <= limits.max_record_bytes:
        return plain
    check_each(records, limits)
    return None


def check_batch(
    records: Sequence[Record], limits: Limits, batch_node: str | None = None, idempotency_key: str | None = None
) -> None:
    """The first part of `check_records`: the batch as a whole."""
    count = len(records)
    if not count:
        raise InvalidRequestError("records: a batch needs at least one record", field="records")
    if count > limits.max_batch_records:
        raise BatchTooLargeError(
            f"a batch holds at most {limits.max_batch_records} records, not {count}",
            records=count,
            max=limits.max_batch_records,
        )
    if idempotency_key is not None:
        _check_key(idempotency_key, limits.max_idempotency_key_chars)
    if batch_node is not None:
        _check_text(batch_node, "node", limits.max_node_bytes)


def check_each(records: Sequence[Record], limits: Limits, begin: int = 0, end: int | None = None) -> None:
    """The second part of `check_records`, for a caller that looks at a long batch bit by bit: some of its records."""
    # Batches of thousands are the common case, so what is plainly in order is told apart here, without a call.
    max_record_bytes = limits.max_record_bytes
    max_tag_bytes = limits.max_tag_bytes
    max_node_bytes = limits.max_node_bytes
    for index, record in enumerate(records if end is None else records[begin:end], begin):
        if not (
            record.meta is None
            and len(record.data) <= max_record_bytes
            and ((tag := record.tag) is None or (tag.isascii() and len(tag) <= max_tag_bytes))
            and ((node := record.node) is None or (node.isascii() and len(node) <= max_node_bytes))
        ):
            _check_record(index, record, limits)


def _check_record(index: int, record: Record, limits: Limits) -> None:
    meta = record.meta
    if meta is not None and len(meta) == 4 and bytes(meta) == b"null":
        record.meta = meta = None
    size = len(record.data) + (0 if meta is None else len(meta))
    if size > limits.max_record_bytes:
        raise RecordTooLargeError(
            f"records[{index}]: data and meta take {size} bytes, at most {limits.max_record_bytes} are allowed",
            index=index,
            bytes=size,
            max=limits.max_record_bytes,
        )
    _check_text(record.tag, f"records[{index}].tag", limits.max_tag_bytes)
    _check_text(record.node, f"records[{index}].node", limits.max_node_bytes)
    if meta is not None:
        _check_meta(meta, f"records[{index}].meta", limits)


def _check_key(key: str, max_chars: int) -> None:
    field = "idempotency_key"
    if not key:
        raise InvalidRequestError(f"{field}: is empty. Leave it out to append without a key.", field=field)
    if _utf8_bytes(key, field) and len(key) > max_chars:
        raise InvalidRequestError(
            f"{field}: has {len(key)} characters, at most {max_chars} are allowed", field=field, chars=len(key),
            max=max_chars,
        )  # fmt: skip


def _utf8_bytes(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        # Only Python callers can get here: JSON text with half a surrogate pair does not decode.
        raise InvalidRequestError(f"{field}: the text cannot be written as UTF-8", field=field) from error


def _check_text(text: str | None, field: str, max_bytes: int) -> None:
    if text is None:
        return
    size = _utf8_bytes(text, field)
    if size > max_bytes:
        raise InvalidRequestError(
            f"{field}: takes {size} bytes, at most {max_bytes} are allowed", field=field, bytes=size, max=max_bytes
        )


def _check_meta(meta: msgspec.Raw | bytes, field: str, limits: Limits) -> None:
    if len(meta) > limits.max_meta_bytes:
        raise InvalidRequestError(
            f"{field}: takes {len(meta)} bytes, at most {limits.max_meta_bytes} are allowed",
            field=field,
            bytes=len(meta),
            max=limits.max_meta_bytes,
        )
    try:
        # Repeated keys count once, as they do for a caller that reads the object; the byte bound covers the text
        # itself.
        keys = len(_META_DECODER.decode(meta))
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{field}: must be a JSON object", field=field) from error
    if keys > limits.max_meta_keys:
        raise InvalidRequestError(
            f"{field}: has {keys} keys, at most {limits.max_meta_keys} are allowed",
            field=field,
            keys=keys,
            max=limits.max_meta_keys,
        )


# The fields of an append request, as decoded from the wire and as the engine takes them.

if TYPE_CHECKING:
    Records = Sequence[Record]
else:
    # The decoder must see a list; Python code may pass any sequence.
    Records = list[Record]


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Records to append, in order, all of them or none."""

    records: Records
    node: str | None = None
    idempotency_key: str | None = None
    idempotency_check: bool = False
    """A key that was used for other records is then an error, instead of an answer with a flag."""
    create: bool | None = None
    config: TopicConfigPatch | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    """For a queue: how long its jobs are held back before they can be claimed; cut to a day."""
    run_at: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """For a queue: when its jobs can be claimed, in ms since 1970, instead of `delay_ms`."""
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    """For a queue: jobs of a higher priority are claimed first."""
    unique_key: str | None = None
    """For a queue: appends no job while one with this key is in the queue, but answers with that one."""
    disable_backpressure: bool = False
    """Rather wait for a full log than be refused."""
    expected_head_seq: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Append only if this is the head of the topic; 0 is that of an empty or missing one."""
    fence: str | None = None
    """Append only if this is the fence of the topic; empty if it has none."""
    new_fence: str | None = None
    """The fence of the topic from these records on; empty removes it."""


class AppendBody(Batch, frozen=True, kw_only=True, gc=False):
    """Records to append, in order."""


def single_record(batch: Batch) -> Record | None:
    """The record of a batch that has no other and asks for nothing more, except perhaps for a key, or for a topic in
    case there is none: those of one tick may share a block (`engine.coalesce`)."""
    if (
        len(batch.records) != 1
        or batch.node is not None
        or batch.config is not None
        or batch.delay_ms
        or batch.run_at is not None
        or batch.priority
        or batch.unique_key is not None
        or batch.disable_backpressure
        or batch.expected_head_seq is not None
        or batch.fence is not None
        or batch.new_fence is not None
    ):
        return None
    return batch.records[0]


def payload_bytes(records: Sequence[Record]) -> int:
    """Payload bytes of records, as counted by caps and quotas."""
    if type(records) is Values:
        return sum(records.plain.sizes)
    return sum([len(record.data) + len(record.meta or b"") for record in records])


ROW: Final = Struct("<IIHH")
ROW_BYTES: Final = ROW.size
ROW_WORDS: Final = ROW_BYTES // 4

SEQ_NAME: Final = b'{"$seq":'
TS_NAME: Final = b',"$ts":'
NODE_NAME: Final = b',"$node":'
DATA_NAME: Final = b',"data":'
META_NAME: Final = b',"meta":'
TAG_NAME: Final = b',"$tag":'

TRAIT_TAGS: Final = 1
TRAIT_NODES: Final = 2
TRAIT_META: Final = 4
"""Traits: properties that at least one record of a block has."""


def words(rows: bytes | memoryview) -> memoryview:
    """Rows as 32-bit words: word 3i is record i's start, 3i+1 its meta part, 3i+2 tag (low half) and head (high)."""
    return memoryview(rows).cast("I")


# JSON text where a line is a record.

_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def in_one_line(text: bytes) -> bytes:
    """JSON text without line breaks. They only ever stand between its values, where a space means the same: within a
    string they are written as escapes."""
    return text.translate(_BREAKS) if b"\n" in text or b"\r" in text else text
