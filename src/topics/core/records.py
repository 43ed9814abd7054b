"""A record as a writer hands it in, and the checks a batch passes before anything else happens to it.

`data` and `meta` are the JSON text the writer sent, byte for byte. They are cut out of the request, never parsed and
never encoded again: reading back gives what was written, down to the spelling of a number.

Two things follow from msgspec's `Raw`, and both are the caller's duty: the text inside a `Raw` may be invalid UTF-8, so
a request body is checked once as a whole; and a `Raw` keeps the whole body alive, so small parts that stay are copied.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

import msgspec

from topics.core.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError
from topics.core.limits import Limits

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
    """A batch of records that are nothing but data. None of them is made before somebody asks for it."""

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
        # Asked of every batch: an abstract class would look at its registry each time.
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
        # One record without anything but data is what most requests bring.
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
        raise InvalidRequestError("records: a batch holds at least one record", field="records")
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
    """The second part of `check_records`, for whoever looks at a long batch bit by bit: some of its records."""
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
        # Repeated keys count once, as they do for whoever reads the object; the byte bound covers the text itself.
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
