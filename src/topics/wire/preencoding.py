"""Pre-encoding of long batches: fragments are encoded in steps, before their seqs are known.

To encode fifty megabytes, or a hundred thousand records, takes a tenth of a second, which would block the event loop.
So a task of the fair scheduler encodes the batch ahead of time, with the sequence numbers and the timestamp that the
topic would give next. When the write is decided, other writers may have taken these numbers. Then `take` overwrites
them in place: they have the same number of digits, except at a power of ten, where the batch is encoded again.

Overwriting the numbers was compared with encoding again (Python 3.11, one core, milliseconds):

| batch | encode again | numbers written over | numbers as foreseen |
|---|---|---|---|
| 10 records of 5 MB | 38 | 0.4 | 0.4 |
| 10,000 records of 1 KB with a tag | 8.3 | 9.3 | 0.02 |
| 10,000 records of 1 KB without a tag | 4.5 | 8.8 | 0.02 |
| 10,000 records of 100 bytes with a tag | 7.4 | 7.3 | 0.02 |
| 10,000 records of 100 bytes without a tag | 2.9 | 7.4 | 0.02 |

It is used because it saves nearly all of the time for large records. For many short ones it saves nothing, and without
tags it costs more than encoding again. Both cases occur only on a topic with concurrent writers: otherwise the numbers
are as predicted.

The text is in memory that the system maps page by page on write, because Python has no growing bytes.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Self, cast

from topics.model.limits import KIB, Limits
from topics.model.records import ROW_WORDS, SEQ_NAME, PlainRecords, Record, check_batch, check_records, words
from topics.system.reserved_memory import reserve_memory
from topics.wire.record_encoding import Fragments, encode_fragments

STEP_BYTES = 256 * KIB
STEP_RECORDS = 1_000
"""The number of records encoded at a time: a millisecond or two of work."""
_MEASURED_RECORDS = 5_000
_HEAD_BYTES_MAX = 96
"""The size of a fragment's head without its node, of its end, and of the comma after it."""
_AROUND_BYTES = 4 * KIB
"""Bytes kept free before and after data that becomes a fragment in place."""
_ESCAPED = 6
"""The maximum length of a character of a text in JSON."""


class Preencoded(list[Record]):
    """Records with their encoded fragments. Each record was checked (`model.records.check_each`)."""

    __slots__ = ("preencoded",)

    def __init__(self, records: Sequence[Record], preencoded: "PreencodedBatch") -> None:
        super().__init__(records)
        self.preencoded = preencoded


def check_preencoded(
    records: Sequence[Record], limits: Limits, node: str | None = None, key: str | None = None
) -> PlainRecords | None:
    """Like `check_records`, without the checks of each record if the batch was preencoded, which has done them."""
    if isinstance(records, Preencoded):
        check_batch(records, limits, node, key)
        return None
    return check_records(records, limits, node, key)


class Place(NamedTuple):
    """Memory with the data of a single record, and free space before and after it."""

    memory: memoryview
    begin: int
    end: int

    @classmethod
    def reserve(cls, nbytes: int) -> Self:
        """Space for data of this many bytes, and for the rest of its fragment if that is not unusually long."""
        return cls(reserve_memory(_AROUND_BYTES + nbytes + _AROUND_BYTES), _AROUND_BYTES, _AROUND_BYTES + nbytes)

    @property
    def data(self) -> memoryview:
        return self.memory[self.begin : self.end]


class PreencodedBatch:
    """The fragments of a batch: call `step` until it is done, then `take` once."""

    __slots__ = (
        "_base", "_data", "_done", "_end", "_first_seq", "_length", "_node", "_payload", "_place", "_records", "_room",
        "_rows", "_text", "_traits", "ts",
    )  # fmt: skip

    def __init__(
        self,
        records: Sequence[Record],
        first_seq: int,
        ts: int,
        node: str | None,
        place: Place | None = None,
        base: int = 0,
    ) -> None:
        """`base` is the predicted start of the text in the topic's coordinate.

        `place` is the memory of the data of a single record: its fragment is built around it.
        """
        self._records = records
        self._place = place
        self._base = base
        self._first_seq = first_seq
        self.ts = ts
        self._node = node
        self._done = 0
        """The number of measured, and then of encoded records."""
        self._room = 0
        self._text: memoryview | None = None
        self._length = 0
        self._data = memoryview(b"")
        self._end = b""
        """The remaining data of the record being copied, and the text after it."""
        self._rows = array("I")
        self._payload = 0
        self._traits = 0

    def step(self) -> bool:
        """Does a unit of work. Returns whether the work is complete."""
        if self._place is not None:
            self._surround(self._place)
        elif self._text is None:
            self._measure()
        elif self._end:
            self._copy(self._text)
        else:
            self._encode(self._text)
        return self._text is not None and self._done == len(self._records) and not self._end

    def _surround(self, place: Place) -> None:
        """Writes the rest of the fragment before and after the data, if there is room."""
        self._place = None
        (record,) = self._records
        made, head, tail = self._without_data(record)
        begin, end = place.begin - len(head), place.end + len(tail)
        if begin < 0 or end > len(place.memory):
            return
        self._text = place.memory[begin:end]
        self._put(self._text, head)
        self._length += len(record.data)
        self._put(self._text, tail)
        self._payload += len(record.data)
        self._done = 1
        self._count(made)

    def _measure(self) -> None:
        some = self._records[self._done : self._done + _MEASURED_RECORDS]
        self._room += sum(
            [
                len(record.data) + len(record.meta or b"") + _ESCAPED * (len(record.tag or "") + len(record.node or ""))
                for record in some
            ]
        )
        self._done += len(some)
        if self._done == len(self._records):
            each = _HEAD_BYTES_MAX + _ESCAPED * len(self._node or "")
            self._text = reserve_memory(self._room + each * len(self._records))
            self._done = 0

    def _encode(self, text: memoryview) -> None:
        records, begin, size = self._records, self._done, 0
        if len(records[begin].data) > STEP_BYTES:
            self._begin_long(text, records[begin])
            return
        end = begin
        while end < len(records) and end - begin < STEP_RECORDS and size < STEP_BYTES:
            size += len(records[end].data)
            if end > begin and len(records[end].data) > STEP_BYTES:
                break
            end += 1
        made = encode_fragments(records[begin:end], self._first_seq + begin, self.ts, self._node, self._at)
        self._done = end
        self._put(text, made.text)
        if end < len(records):
            self._put(text, b",")
        self._count(made)

    @property
    def _at(self) -> int:
        """The start of the next fragment in the topic's coordinate."""
        return self._base + self._length

    def _count(self, made: Fragments) -> None:
        self._rows.frombytes(made.rows)
        self._payload += made.payload_bytes
        self._traits |= made.traits

    def _put(self, text: memoryview, some: bytes | memoryview) -> None:
        text[self._length : self._length + len(some)] = some
        self._length += len(some)

    def _begin_long(self, text: memoryview, record: Record) -> None:
        """Starts a record with so much data that it is copied in portions: it is encoded without data, and split at its
        position."""
        made, head, tail = self._without_data(record)
        self._put(text, head)
        self._data = memoryview(record.data)
        self._payload += len(record.data)
        self._done += 1
        self._end = tail + (b"," if self._done < len(self._records) else b"")
        self._count(made)

    def _without_data(self, record: Record) -> tuple[Fragments, bytes, bytes]:
        """Returns the next record without data, and the text before and after the data."""
        bare = Record(b"", record.tag, record.node, record.meta)
        made = encode_fragments((bare,), self._first_seq + self._done, self.ts, self._node, self._at)
        head = words(made.rows)[ROW_WORDS - 1] >> 16
        return made, made.text[:head], made.text[head:]

    def _copy(self, text: memoryview) -> None:
        self._put(text, self._data[:STEP_BYTES])
        self._data = self._data[STEP_BYTES:]
        if not self._data:
            self._put(text, self._end)
            self._end = b""

    def fits(self, count: int, first_seq: int, ts: int, node: str | None) -> bool:
        """Returns whether it can be used for these numbers."""
        last = first_seq + count - 1
        if self._text is None or self._done != count or node != self._node:
            return False
        if first_seq == self._first_seq and ts == self.ts:
            return True
        alike = {len(str(seq)) for seq in (first_seq, last, self._first_seq, self._first_seq + count - 1)}
        return len(alike) == 1 and len(str(ts)) == len(str(self.ts))

    def take(self, first_seq: int, ts: int, base: int) -> Fragments:
        """Returns the fragments for matching numbers."""
        assert self._text is not None
        text, count = self._text[: self._length], len(self._records)
        self._text = None
        if (first_seq, ts) != (self._first_seq, self.ts):
            size = len(b'%d,"$ts":%d' % (first_seq, ts))
            places = words(self._rows.tobytes())[::ROW_WORDS].tolist()
            skipped = len(SEQ_NAME) - self._base
            for seq, start in enumerate(places, first_seq):
                at = start + skipped
                text[at : at + size] = b'%d,"$ts":%d' % (seq, ts)
        rows = self._rows.tobytes()
        if base != self._base:
            # One long addition, or subtraction: every sum fits into its 32 bits.
            moved = int.from_bytes((array("I", (abs(base - self._base), 0, 0)) * count).tobytes(), "little")
            whole = int.from_bytes(rows, "little") + (moved if base > self._base else -moved)
            rows = whole.to_bytes(len(rows), "little")
        # A view instead of bytes: code that uses a text also accepts views of files.
        return Fragments(cast(bytes, text.toreadonly()), rows, self._payload, self._traits)
