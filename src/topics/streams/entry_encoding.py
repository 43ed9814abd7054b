"""What an append carries, as records, and how they come out again.

A stream of JSON stores each value as it was sent, so both protocols see the same. A stream of anything else stores one
record an append: its bytes as base64 with the stream's content type beside them, which is JSON for whoever reads topics
and is decoded for whoever reads the stream (docs/decisions/0024).
"""

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec
from pybase64 import b64decode, b64encode

from topics.model.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    RecordTooLargeError,
    StreamConflictError,
    quoted,
)
from topics.model.limits import Limits
from topics.model.records import META_NAME, Record, Values
from topics.streams.stream_state import JSON_TYPE
from topics.wire.json_array_reader import Kind
from topics.wire.preencoding import Place

_decode_list: Callable[[bytes], Any] = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_value = msgspec.json.Decoder(msgspec.Raw).decode
_encode_json = msgspec.json.Encoder().encode
_WHITE = b" \t\n\r"
_PACKED_BYTES = 3 * 128 * 1024
_CHECKED_BYTES = 2 * 1024 * 1024
"""Entries up to this size are decoded as a whole, as they are mostly given out. What the other protocol may write is
shorter, unless its limit was raised."""
META_BEGIN = META_NAME + b'{"content-type":'

VALUES_MAX = 100_000
"""Values of one append. Clients merge what waits into one request, so it is far above what a topic's batch may have.
Each value costs hundreds of bytes while it is written: without a bound a body of ones would take all memory."""


@lru_cache(maxsize=256)
def media_type(content_type: str) -> str:
    """A content type without its parameters, in small letters: what is compared."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    return media_type(content_type) == JSON_TYPE


Content = bytes | list[Record]
"""What an append brings: its body, or the records of one that was read before, in portions."""


def read_json(body: Content, key: str | None) -> Sequence[Record]:
    """The values of a JSON body: the elements of an array, one level of it, or the one value there is."""
    if isinstance(body, list):
        return body
    try:
        # The text inside a Raw is not looked at, so bad UTF-8 is found here, once for the body.
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
    """Refuses an array of too many values before any of them takes memory."""
    # Fewer commas are fewer values. More of them may stand inside values, and only a parser can tell. Most bodies are
    # too short for so many, and to count costs as much as to read.
    if len(body) < 2 * most or body.count(b",") < most:
        return
    try:
        _counting(most)(body)
    except msgspec.ValidationError as error:
        # Shorter arrays are refused as well, but as a whole; this one for the value behind the last that may be.
        if f"$[{most}]" not in str(error):
            return
    except (ValueError, RecursionError):
        return  # It is no JSON, which is told where it is read.
    raise BatchTooLargeError(f"the body has more than {most} values; split it", max=most)


@lru_cache(maxsize=2)
def _counting(most: int) -> Any:
    """Decodes an array of just one value too many, of which the last is one that nobody sends: the parser stops there,
    however much follows."""
    return msgspec.json.Decoder(tuple.__class_getitem__((*[msgspec.Raw] * most, Literal["one too many"]))).decode


def read_values(key: str | None) -> Callable[[bytes], list[Record]]:
    """Decodes the values of an array, for a body that is read in portions (`wire.json_array_reader`)."""
    return lambda text: [Record(value, key) for value in _decode_list(text)]


def kind_of_values(limits: Limits) -> Kind:
    largest = limits.max_record_bytes
    return Kind(
        "body", "", VALUES_MAX, largest,
        lambda: BatchTooLargeError(f"the body has more than {VALUES_MAX} values; split it", max=VALUES_MAX),
        lambda index: RecordTooLargeError(f"value {index} takes more than {largest} bytes", index=index, max=largest),
    )  # fmt: skip


def pack_bytes(body: memoryview) -> Generator[None, None, Place]:
    """Bytes as the data of a record, made bit by bit."""
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
    """The one record of an append of bytes that were packed before."""
    return Record(cast(bytes, place.data.toreadonly()), key, None, _meta(content_type))


def _meta(content_type: str) -> bytes:
    return b'{"content-type":%b}' % _encode_json(content_type)


def bytes_records(body: Content, content_type: str, key: str | None) -> list[Record]:
    """The one record of an append of bytes. Raises StreamConflictError."""
    if not isinstance(body, list):
        return [bytes_record(body, content_type, key)]
    if body[0].meta != _meta(content_type):
        # They were packed for the stream as it was then.
        raise StreamConflictError(f"the stream holds {quoted(content_type)} now", content_type=content_type)
    return body


def bytes_record(body: bytes, content_type: str, key: str | None) -> Record:
    """The one record of an append of bytes."""
    return Record(b'"%b"' % b64encode(body), key, None, _meta(content_type))


class Entry:
    """One stored entry, read in parts: of a large one no more is decoded than is wanted."""

    __slots__ = ("_base64", "_data", "_whole", "size")

    def __init__(self, data: memoryview, meta: bytes) -> None:
        self._data = data
        self._base64 = meta.startswith(META_BEGIN) and len(data) % 4 == 2 and bytes(data[:1]) == b'"'
        self._whole: bytes | None = None
        if self._base64 and len(data) <= _CHECKED_BYTES:
            # Whoever writes through the other protocol may not mean bytes, and then all of the text counts.
            try:
                self._whole = b64decode(data[1:-1], validate=True)
            except ValueError:
                self._base64 = False
        self.size = len(data)
        if self._base64:
            self.size = (len(data) - 2) // 4 * 3 - bytes(data[-3:-1]).count(b"=")

    def part(self, begin: int, end: int) -> bytes:
        """The bytes from one place up to another."""
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
