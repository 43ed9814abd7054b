"""Entry encoding: the body of an append as records, and records as the bytes of a read.

A JSON stream stores each value as it was sent, so both protocols see the same. Any other stream stores one record per
append: its bytes as base64 with the content type beside them. /v0 reads that as JSON, /v1 decodes it
(docs/decisions/0024).
"""

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Literal, cast

import msgspec
from pybase64 import b64decode, b64encode

from topics.engine.topic import Topic
from topics.model.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    RecordTooLargeError,
    StreamConflictError,
    quoted,
)
from topics.model.limits import Limits
from topics.model.records import META_NAME, Record, Values
from topics.streams.stream_state import JSON_TYPE, stream_of
from topics.wire.json_array_reader import Kind
from topics.wire.preencoding import Place
from topics.wire.record_slicing import View, data_span, meta_of

_decode_list: Callable[[bytes], Any] = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_value = msgspec.json.Decoder(msgspec.Raw).decode
_encode_json = msgspec.json.Encoder().encode
_WHITE = b" \t\n\r"
_ROW = Struct("<III")
_PACKED_BYTES = 3 * 128 * 1024
_CHECKED_BYTES = 2 * 1024 * 1024
"""Entries up to this size are decoded as a whole, because most reads return them whole."""
META_BEGIN = META_NAME + b'{"content-type":'

VALUES_MAX = 100_000
"""Maximum values of one append. Far above the limit of a /v0 batch, because clients merge pending appends. Each value
takes hundreds of bytes while it is written: without a limit, a body of ones would use all memory."""


@lru_cache(maxsize=256)
def media_type(content_type: str) -> str:
    """Returns the content type without parameters, in lower case, for comparison."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    return media_type(content_type) == JSON_TYPE


Content = bytes | list[Record]
"""The content of an append: its body, or records that were already read in chunks."""


def read_json(body: Content, key: str | None) -> Sequence[Record]:
    """Returns the values of a JSON body: the elements of an array (one level), or the single value."""
    if isinstance(body, list):
        return body
    try:
        # msgspec does not check the text inside a Raw, so invalid UTF-8 is found here, once per body.
        if not body.isascii():
            body.decode()
        check_count(body)
        if body.lstrip(_WHITE)[:1] == b"[":
            values = _decode_list(body)
            return Values(values) if key is None else [Record(value, key) for value in values]
        return [Record(decode_value(body), key)]
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.from_decode("body", error, body) from error


def check_count(body: bytes, most: int = VALUES_MAX) -> None:
    """Refuses an array of too many values before they take memory."""
    # Fewer commas mean fewer values. Commas may also be inside values, which only a parser can distinguish. Most bodies
    # are too short for so many values, and counting costs as much as parsing.
    if len(body) < 2 * most or body.count(b",") < most:
        return
    try:
        _counting(most)(body)
    except msgspec.ValidationError as error:
        # Invalid shorter arrays are refused by the parser; this one because of the first value over the limit.
        if f"$[{most}]" not in str(error):
            return
    except (ValueError, RecursionError):
        return  # Not JSON; the parser reports it.
    raise BatchTooLargeError(f"the body has more than {most} values; split it", max=most)


@lru_cache(maxsize=2)
def _counting(most: int) -> Any:
    """Decodes an array with one value too many, whose last type matches nothing, so the parser stops there."""
    return msgspec.json.Decoder(tuple.__class_getitem__((*[msgspec.Raw] * most, Literal["one too many"]))).decode


def read_values(key: str | None) -> Callable[[bytes], list[Record]]:
    """Decodes the values of an array, for a body that is read in chunks (`wire.json_array_reader`)."""
    return lambda text: [Record(value, key) for value in _decode_list(text)]


def kind_of_values(limits: Limits) -> Kind:
    largest = limits.max_record_bytes
    return Kind(
        "body", "", VALUES_MAX, largest,
        lambda: BatchTooLargeError(f"the body has more than {VALUES_MAX} values; split it", max=VALUES_MAX),
        lambda index: RecordTooLargeError(f"value {index} takes more than {largest} bytes", index=index, max=largest),
    )  # fmt: skip


def pack_bytes(body: memoryview) -> Generator[None, None, Place]:
    """Encodes bytes as the data of a record, in steps."""
    place = Place.reserve(2 + -(-len(body) // 3) * 4)
    data = place.data
    data[:1], at = b'"', 1
    for begin in range(0, len(body), _PACKED_BYTES):
        some = b64encode(body[begin : begin + _PACKED_BYTES])
        data[at : at + len(some)] = some
        at += len(some)
        yield
    data[at:] = b'"'
    return place


def packed_record(place: Place, content_type: str, key: str | None) -> Record:
    """Returns the record of an append of encoded bytes."""
    return Record(cast(bytes, place.data.toreadonly()), key, None, _meta(content_type))


def _meta(content_type: str) -> bytes:
    return b'{"content-type":%b}' % _encode_json(content_type)


def bytes_records(body: Content, content_type: str, key: str | None) -> list[Record]:
    """Returns the record of an append of bytes. Raises StreamConflictError."""
    if not isinstance(body, list):
        return [bytes_record(body, content_type, key)]
    if body[0].meta != _meta(content_type):
        # They were encoded for the content type of an earlier stream.
        raise StreamConflictError(f"the stream holds {quoted(content_type)} now", content_type=content_type)
    return body


def bytes_record(body: bytes, content_type: str, key: str | None) -> Record:
    """The record of an append of bytes."""
    return Record(b'"%b"' % b64encode(body), key, None, _meta(content_type))


def content_size(stored_bytes: int, end: bytes) -> int:
    """Returns the size of an entry that is stored as base64. `end` is the end of its data, including the quote."""
    return (stored_bytes - 2) // 4 * 3 - end[-3:-1].count(b"=")


def content_size_of(topic: Topic) -> Callable[[View, int, int], int] | None:
    """Returns the function that measures the entries of a stream of bytes; None for other topics."""
    state = stream_of(topic)
    return None if state is None or is_json(state.content_type) else content_bytes


def content_bytes(view: View, lo: int, hi: int) -> int:
    """Returns the size of some entries of a stream of bytes as returned to readers."""
    size, text = 0, view.text
    for index in range(lo, hi):
        begin, end = data_span(view, index)
        if meta_of(view, index).startswith(META_BEGIN):
            size += content_size(end - begin, bytes(text[end - 3 : end]))
        else:
            # It was written through /v0.
            size += end - begin
    return size


def lone_content_bytes(text: bytes, rows: bytes) -> int:
    """Like the function above, for the only entry of a block, in a fifth of the time."""
    _, meta, last = _ROW.unpack(rows)
    end = len(text) - 1 - (last & 0xFFFF) - meta
    nbytes: int = end - (last >> 16)
    return (nbytes - 2) // 4 * 3 - text.count(b"=", end - 3, end) if text.startswith(META_BEGIN, end) else nbytes


def wrapping_bytes(content_type: str) -> int:
    """The stored bytes of a binary entry besides its base64 text: the meta and two quotes."""
    return len(_meta(content_type)) + 2


class Entry:
    """One stored entry, read in parts, so that only the requested part of a large one is decoded."""

    __slots__ = ("_base64", "_data", "_whole", "size")

    def __init__(self, data: memoryview, meta: bytes) -> None:
        self._data = data
        self._base64 = meta.startswith(META_BEGIN) and len(data) % 4 == 2 and bytes(data[:1]) == b'"'
        self._whole: bytes | None = None
        if self._base64 and len(data) <= _CHECKED_BYTES:
            # A record written through /v0 may not be base64; then the text itself is the content.
            try:
                self._whole = b64decode(data[1:-1], validate=True)
            except ValueError:
                self._base64 = False
        self.size = len(data)
        if self._base64:
            self.size = content_size(len(data), bytes(data[-3:]))

    def part(self, begin: int, end: int) -> bytes:
        """The bytes from one position up to another."""
        if self._whole is not None:
            return self._whole[begin:end]
        if not self._base64:
            return bytes(self._data[begin:end])
        first, last = begin // 3, -(-min(end, self.size) // 3)
        try:
            decoded = b64decode(self._data[1 + 4 * first : 1 + 4 * last], validate=True)
        except ValueError:
            self._base64 = False
            return bytes(self._data[begin:end])
        return decoded[begin - 3 * first : end - 3 * first]


def check_entries(records: Sequence[Record], limits: Limits, key: str | None) -> None:
    """The limits of a JSON append."""
    if key is not None:
        _check_key(key, limits)
    largest = limits.max_record_bytes
    sizes = records.plain.sizes if isinstance(records, Values) else [len(record.data) for record in records]
    if max(sizes, default=0) > largest:
        index = next(index for index, size in enumerate(sizes) if size > largest)
        raise RecordTooLargeError(
            f"value {index} takes {sizes[index]} bytes, at most {largest} are allowed",
            index=index, bytes=sizes[index], max=largest,
        )  # fmt: skip


def _check_key(key: str, limits: Limits) -> None:
    if len(key.encode()) > limits.max_tag_bytes:
        raise InvalidRequestError(
            f"Stream-Key: at most {limits.max_tag_bytes} bytes are allowed",
            field="Stream-Key",
            max=limits.max_tag_bytes,
        )
