"""Arrow slices: sealed segments as Arrow batches, by offset arithmetic without parsing.

A segment's rows have the start and end of each part of a fragment (`model.records`), so no JSON is parsed: numpy
converts the rows to offsets, and Arrow copies the parts. This uses an array of twice as many strings as records over
the segment's text: string 2i is the requested part of record i, string 2i + 1 is the text between it and the next one.
One call to Arrow takes all even strings.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from topics.log.segment import CHUNK_BYTES, DELETED, SegmentIndex, chunk_is_good, decode_head
from topics.model import records as fragment
from topics.model.records import TRAIT_META, TRAIT_NODES, TRAIT_TAGS

# The columns of records, for Arrow and for Spark; a test compares the two.

RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("node", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("meta", pa.string()),
        pa.field("data", pa.string(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
    ]
)

FIELD_IDS = {name: number for number, name in enumerate(RECORD_SCHEMA.names, 1)}
"""The Iceberg field ids of the columns. They are stored in files, so they are never reused."""

RECORD_DDL = (
    "topic string not null, epoch bigint not null, seq bigint not null, ts timestamp not null, node string, "
    "tag string, meta string, data string not null, content_type string not null, deleted boolean not null"
)
"""The schema of a record as Spark DDL."""

JSON_TYPE = "application/json"
"""The content type of a record whose meta names none."""

CONTENT_TYPE_KEY = "content-type"
"""The meta key with the type of a binary record, whose data is base64 in a JSON string."""


Ints = npt.NDArray[np.int64]

_SEQ_NAME = len(fragment.SEQ_NAME)
_TS_NAME = len(fragment.TS_NAME)
_NODE_NAME = len(fragment.NODE_NAME)
_DATA_NAME = len(fragment.DATA_NAME)
_META_NAME = len(fragment.META_NAME)
_TAG_NAME = len(fragment.TAG_NAME)
_POWERS_OF_TEN = 10 ** np.arange(1, 19, dtype=np.int64)
_CONTENT_TYPE_MARK = f'"{CONTENT_TYPE_KEY}"'
_decode_string = msgspec.json.Decoder(str).decode


class _ContentType(msgspec.Struct):
    value: str = msgspec.field(name=CONTENT_TYPE_KEY, default=JSON_TYPE)


_decode_content_type = msgspec.json.Decoder(_ContentType).decode


class Window(NamedTuple):
    """The filter for the records of a segment."""

    from_seq: int = 0
    to_seq: int = 2**63 - 1
    """Included."""
    from_ts: int = 0
    to_ts: int = 2**63 - 1
    """Not included."""
    tag_prefix: str = ""
    include_deleted: bool = False


class SegmentSlicer:
    """An open segment; raises ValueError with the reason for a damaged one."""

    def __init__(self, data: memoryview, index: memoryview) -> None:
        self._data = data
        self.head = decode_head(data)
        self.index = SegmentIndex(index)
        head, found = self.head, self.index
        if (found.topic_id, found.first_seq, found.count) != (head.topic_id, head.first_seq, head.count):
            raise ValueError("its index belongs to another segment")
        self._text = data[head.text_at : head.checksums_at]
        rows = np.frombuffer(found.rows, dtype=np.uint32).reshape(-1, 3)
        self._starts = rows[:, 0].astype(np.int64) - head.bias
        self._metas = rows[:, 1].astype(np.int64)
        self._tags = (rows[:, 2] & 0xFFFF).astype(np.int64)
        self._heads = (rows[:, 2] >> 16).astype(np.int64)

    def select(self, window: Window) -> Ints:
        """The indexes of the selected records, ascending."""
        head = self.head
        lo = max(window.from_seq - head.first_seq, 0)
        hi = min(window.to_seq - head.first_seq + 1, head.count)
        if window.from_ts > head.first_ts:
            lo = max(lo, self.index.count_before(window.from_ts))
        if window.to_ts <= head.last_ts:
            hi = min(hi, self.index.count_before(window.to_ts))
        if lo >= hi:
            return np.empty(0, np.int64)
        chosen = np.arange(lo, hi, dtype=np.int64)
        if not window.include_deleted:
            chosen = chosen[~self._deleted()[lo:hi]]
        if window.tag_prefix:
            chosen = np.intersect1d(chosen, self._with_tag(window.tag_prefix), assume_unique=True)
        return chosen

    def batch(self, chosen: Ints, topic: str, schema: pa.Schema = RECORD_SCHEMA) -> pa.RecordBatch:
        """Returns the records of some indexes as a batch of `RECORD_SCHEMA`, or of some of its columns."""
        self._check(chosen)
        columns = [self._column(name, chosen, topic) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, name: str, chosen: Ints, topic: str) -> pa.Array:
        count, head = len(chosen), self.head
        match name:
            case "topic":
                return _constant(topic, count)
            case "epoch":
                return _constant(head.epoch, count, pa.int64())
            case "seq":
                return pa.array(chosen + head.first_seq)
            case "ts":
                return self._times(chosen)
            case "node":
                return self._node(chosen)
            case "tag":
                return self._tag(chosen)
            case "meta":
                return self._meta(chosen)
            case "data":
                return self._strings(self._starts + self._heads, self._data_ends(), chosen)
            case "content_type":
                return _content_types(self._meta(chosen), count)
            case _:
                return pa.array(self._deleted()[chosen])

    def _deleted(self) -> npt.NDArray[np.bool_]:
        flags = np.frombuffer(self._data[self.head.flags_at :], dtype=np.uint8)
        return np.equal(flags, DELETED)

    def _ends(self) -> Ints:
        """The offset of each fragment's closing brace."""
        after = np.empty(self.head.count, np.int64)
        after[:-1] = self._starts[1:]
        after[-1] = self.head.text_bytes + 1
        return after - 2

    def _data_ends(self) -> Ints:
        return self._ends() - self._tags - self._metas

    def _times(self, chosen: Ints) -> pa.Array:
        blocks = self.index.blocks()
        firsts = np.array([index for index, _ in blocks] + [self.head.count], dtype=np.int64)
        times = np.repeat(np.array([ts for _, ts in blocks], dtype=np.int64), np.diff(firsts))
        return pa.array(times[chosen] * 1000, type=pa.timestamp("us", tz="UTC"))

    def _node(self, chosen: Ints) -> pa.Array:
        if not self.head.traits & TRAIT_NODES:
            return pa.nulls(len(chosen), pa.string())
        seqs = self.head.first_seq + np.arange(self.head.count, dtype=np.int64)
        blocks = self.index.blocks()
        firsts = np.array([index for index, _ in blocks] + [self.head.count], dtype=np.int64)
        widths = np.repeat(np.array([len(str(ts)) for _, ts in blocks], dtype=np.int64), np.diff(firsts))
        fixed = _SEQ_NAME + _digits(seqs) + _TS_NAME + widths
        ends = self._starts + self._heads - _DATA_NAME
        begins = self._starts + fixed
        return self._quoted(begins, ends, _NODE_NAME, chosen)

    def _tag(self, chosen: Ints) -> pa.Array:
        if not self.head.traits & TRAIT_TAGS:
            return pa.nulls(len(chosen), pa.string())
        ends = self._ends()
        return self._quoted(ends - self._tags, ends, _TAG_NAME, chosen)

    def _meta(self, chosen: Ints) -> pa.Array:
        if not self.head.traits & TRAIT_META:
            return pa.nulls(len(chosen), pa.string())
        ends = self._ends() - self._tags
        missing = self._metas == 0
        begins = np.where(missing, ends, ends - self._metas + _META_NAME)
        return self._strings(begins, ends, chosen, missing)

    def _quoted(self, begins: Ints, ends: Ints, name: int, chosen: Ints) -> pa.Array:
        """The values of a string member without name and quotes, null where it is missing."""
        missing = begins >= ends
        found = self._strings(
            np.where(missing, ends, begins + name + 1), np.where(missing, ends, ends - 1), chosen, missing
        )
        if not pc.any(pc.match_substring(found, "\\")).as_py():
            return found
        values = [
            text if text is None or "\\" not in text else _decode_string(f'"{text}"') for text in found.to_pylist()
        ]
        return pa.array(values, pa.string())

    def _strings(
        self, begins: Ints, ends: Ints, chosen: Ints, missing: npt.NDArray[np.bool_] | None = None
    ) -> pa.Array:
        offsets = np.empty(2 * self.head.count + 1, dtype=np.int32)
        offsets[0:-1:2] = begins
        offsets[1::2] = ends
        offsets[-1] = ends[-1]
        laid_over = pa.StringArray.from_buffers(2 * self.head.count, pa.py_buffer(offsets), pa.py_buffer(self._text))
        taken = laid_over.take(pa.array(2 * chosen))
        return taken if missing is None else pc.if_else(pa.array(missing[chosen]), pa.scalar(None, pa.string()), taken)

    def _with_tag(self, prefix: str) -> Ints:
        """The indexes of records with a tag prefix, from the posting lists of the index."""
        text = b'"' + prefix.encode()
        found: list[Ints] = []
        # A tag with an escape is not sorted by its own bytes, so escaped prefixes scan every tag.
        escaped = msgspec.json.encode(prefix)[:-1] != text
        for place in range(0 if escaped else self.index.first_tag_from(text), self.index.tag_count):
            tag = self.index.tag_at(place)
            if _decode_string(tag).startswith(prefix):
                found.append(np.array(self.index.postings_at(place), dtype=np.int64))
            elif not escaped and not tag.startswith(text):
                break
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def _check(self, chosen: Ints) -> None:
        """Verifies the checksum of every chunk with a byte of a selected record."""
        if not len(chosen):
            return
        first = int(self._starts[chosen[0]]) // CHUNK_BYTES
        last = (int(self._ends()[chosen[-1]])) // CHUNK_BYTES
        for chunk in range(first, last + 1):
            if not chunk_is_good(self._data, self.head, chunk):
                raise ValueError(f"chunk {chunk} of its text has a wrong checksum")


def _digits(numbers: Ints) -> Ints:
    return np.searchsorted(_POWERS_OF_TEN, numbers, side="right").astype(np.int64) + 1


def _constant(value: object, count: int, kind: pa.DataType | None = None) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind or pa.string()), count)


def _content_types(meta: pa.Array, count: int) -> pa.Array:
    if meta.null_count == count:
        return _constant(JSON_TYPE, count)
    named = pc.fill_null(pc.match_substring(meta, _CONTENT_TYPE_MARK), False)
    if not pc.any(named).as_py():
        return _constant(JSON_TYPE, count)
    types = [
        _type_in(text) if is_named else JSON_TYPE
        for text, is_named in zip(meta.to_pylist(), named.to_pylist(), strict=True)
    ]
    return pa.array(types, pa.string())


def _type_in(meta: str) -> str:
    try:
        return _decode_content_type(meta).value
    except msgspec.ValidationError:
        # The key may have any value; only a string is a content type.
        return JSON_TYPE
