"""The sealed segment format: consecutive blocks of one topic, immutable except for one flag byte a record.

All numbers are little endian. A segment consists of two files. Both are complete, because a snapshot names a segment
only after both are on disk.

`seg-<first seq>.data`

    offset  size  field
         0     8  magic "TPSEG001"
         8     8  topic id
        16     8  epoch of the topic
        24     8  first seq
        32     8  payload bytes of all records
        40     8  ts of the first record
        48     8  ts of the last record
        56     4  count; the segment holds `count` seqs without holes
        60     4  bias: the text coordinate of the first fragment
        64     4  length of the text
        68     2  length of the topic's name
        70     1  layout
        71     1  traits
        72     m  the topic's name, so that a stray segment can still be told whose it is
      72+m     .  text: the blocks' texts with a comma between two
         .    8c  XXH3-64 of each 64 KiB chunk of the text (the last may be shorter)
         .     8  XXH3-64 of the header, the name and the chunk checksums
         .     n  delete flags, one byte a record: 0xD5 = deleted, anything else = live

A chunk is verified at its first read, so damage is reported with its seqs. The flags are not covered by a checksum:
setting one is a single-byte write that no crash can tear and that changes no checksum.

`seg-<first seq>.idx`

    offset  size  field
         0     8  magic "TPIDX001"
         8     8  topic id
        16     8  first seq
        24     4  count
        28     4  blocks
        32     4  tags: how many different tags
        36     4  length of the tag strings
        40   12n  rows (`model.records`)
         .   16b  blocks: u32 index of the first record, u32 zero, u64 ts
         .    8t  tags, sorted by bytes: u32 end of its string, u32 end of its postings (in entries)
         .     s  tag strings: the tags' JSON strings, end to end
         .    4p  postings: u32 record index, ascending for each tag
         .    8b  written: u64 for each block, when it differs from its ts; only with the magic "TPIDX002"
         .     8  XXH3-64 of everything before
"""

import itertools
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from struct import Struct

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.log.frame import LAYOUT_JSON
from topics.log.fs import File
from topics.model.errors import NewerFormatError
from topics.model.records import ROW_BYTES

CHUNK_BYTES = 64 * 1024
_JOINED_BYTES = 1024 * 1024
DELETED = 0xD5
_DATA_MAGIC = b"TPSEG001"
_INDEX_MAGIC = b"TPIDX001"
_INDEX_WRITTEN_MAGIC = b"TPIDX002"
_DATA_HEAD = Struct("<8sQQQQQQIIIHBB")
_HEAD_READ_BYTES = 4096
"""Sufficient for the header and nearly every name."""
_INDEX_HEAD = Struct("<8sQQIIII")
_BLOCK = Struct("<IIQ")
_CHECKSUM = Struct("<Q")


class SegmentHead(msgspec.Struct, frozen=True):
    """The header of a `.data` file."""

    topic_id: int
    epoch: int
    first_seq: int
    payload_bytes: int
    first_ts: int
    last_ts: int
    count: int
    bias: int
    text_bytes: int
    traits: int
    name: str

    @property
    def text_at(self) -> int:
        return _DATA_HEAD.size + len(self.name.encode())

    @property
    def chunks(self) -> int:
        return -(-self.text_bytes // CHUNK_BYTES)

    @property
    def checksums_at(self) -> int:
        return self.text_at + self.text_bytes

    @property
    def flags_at(self) -> int:
        return self.checksums_at + 8 * (self.chunks + 1)

    @property
    def file_bytes(self) -> int:
        return self.flags_at + self.count


def encode_data(head: SegmentHead, texts: Sequence[bytes], flags: bytes) -> list[bytes]:
    """Returns the pieces of a `.data` file in order. The text may have any number of pieces."""
    name = head.name.encode()
    start = _DATA_HEAD.pack(
        _DATA_MAGIC, head.topic_id, head.epoch, head.first_seq, head.payload_bytes, head.first_ts, head.last_ts,
        head.count, head.bias, sum(map(len, texts)), len(name), LAYOUT_JSON, head.traits,
    ) + name  # fmt: skip
    chunks = b"".join(map(_CHECKSUM.pack, _chunk_digests(texts)))
    return [start, *texts, chunks, _CHECKSUM.pack(xxh3_64_intdigest(start + chunks)), flags]


def join_texts(texts: list[bytes]) -> list[bytes]:
    """Joins texts with commas into few pieces of limited size: joining all of them would hold the interpreter lock for
    too long. A long text stays a separate piece, because a copy would cost more than a write."""
    pieces: list[bytes] = []
    some: list[bytes] = []
    size = 0
    for text in texts:
        if some and size + len(text) > _JOINED_BYTES:
            pieces += (_one(some), b",")
            some, size = [], 0
        some.append(text)
        size += len(text)
    return [*pieces, _one(some)]


def _one(texts: list[bytes]) -> bytes:
    """Returns a single text unchanged, because it may be a view (`wire.preencoding`)."""
    return texts[0] if len(texts) == 1 else b",".join(texts)


def _chunk_digests(texts: Sequence[bytes]) -> Iterator[int]:
    """Returns the digests of the chunks of the joined texts."""
    # The rest of an earlier text whose chunk continues in the next one.
    rest = b""
    for text in texts:
        view, at = memoryview(text), 0
        if rest:
            at = CHUNK_BYTES - len(rest)
            rest += view[:at]
            if len(rest) < CHUNK_BYTES:
                continue
            yield xxh3_64_intdigest(rest)
        whole = at + (len(view) - at) // CHUNK_BYTES * CHUNK_BYTES
        for begin in range(at, whole, CHUNK_BYTES):
            yield xxh3_64_intdigest(view[begin : begin + CHUNK_BYTES])
        rest = bytes(view[whole:])
    if rest:
        yield xxh3_64_intdigest(rest)


def decode_head(data: memoryview) -> SegmentHead:
    """Reads and verifies a `.data` file except for its text. Raises ValueError with the problem."""
    return _decode_head(lambda begin, size: data[begin : begin + size], len(data))[0]


def read_head(file: File) -> tuple[SegmentHead, Sequence[int]]:
    """Like `decode_head`, for an open file. Returns the checksums of its chunks, too."""
    head, sums = _decode_head(lambda begin, size: memoryview(file.read_at(begin, size)), file.size())
    return head, array("Q", bytes(sums))


def _decode_head(read: Callable[[int, int], memoryview], file_bytes: int) -> tuple[SegmentHead, memoryview]:
    """Returns the header of a file, and the stored checksums of its chunks. `read` takes an offset and a length."""
    start = read(0, _HEAD_READ_BYTES)
    magic = bytes(start[:8])
    if len(start) < _DATA_HEAD.size or not is_version_of(magic, _DATA_MAGIC):
        raise ValueError("it is not a segment file")
    _, topic_id, epoch, first_seq, payload, first_ts, last_ts, count, bias, length, name_length, layout, traits = (
        _DATA_HEAD.unpack_from(start, 0)
    )
    name_end = _DATA_HEAD.size + name_length
    if name_end > len(start):
        start = read(0, name_end)
    sums_bytes = 8 * -(-length // CHUNK_BYTES)
    seal_at = name_end + length + sums_bytes
    whole = file_bytes == seal_at + 8 + count
    right, sums = False, memoryview(b"")
    if whole:
        behind = read(name_end + length, sums_bytes + 8)
        sums = behind[:sums_bytes]
        digest = xxh3_64(_DATA_MAGIC)
        digest.update(start[8:name_end])
        digest.update(sums)
        right = len(behind) == sums_bytes + 8 and digest.intdigest() == _CHECKSUM.unpack_from(behind, sums_bytes)[0]
    if magic != _DATA_MAGIC:
        # If only the version digit of the magic is damaged, everything else is valid for this version.
        if right:
            raise ValueError("it is not a segment file")
        raise NewerFormatError(f"a segment of the format {str(magic, 'ascii')}")
    if not whole:
        raise ValueError(f"it is {file_bytes} bytes long instead of {seal_at + 8 + count}")
    if not right:
        raise ValueError("its header has a wrong checksum")
    if layout != LAYOUT_JSON:
        raise NewerFormatError(f"a segment of the unknown layout {layout}")
    name = str(start[_DATA_HEAD.size : name_end], "utf-8")
    head = SegmentHead(topic_id, epoch, first_seq, payload, first_ts, last_ts, count, bias, length, traits, name)
    return head, sums


def is_version_of(magic: bytes, known: bytes) -> bool:
    """Returns whether a magic is `known`, or differs only in its last digits and so belongs to another version."""
    return magic == known or (magic[:-3] == known[:-3] and magic[-3:].isdigit())


def check_data(data: memoryview) -> SegmentHead:
    """Check the header and the text of a `.data` file."""
    head = decode_head(data)
    for chunk in range(head.chunks):
        if not chunk_is_good(data, head, chunk):
            raise ValueError("its text has a wrong checksum")
    return head


def guess_head(data: memoryview) -> SegmentHead | None:
    """Decodes a damaged header; None unless its lengths add up to the size of the file. The result is unverified."""
    if len(data) < _DATA_HEAD.size:
        return None
    _, topic_id, epoch, first_seq, payload, first_ts, last_ts, count, bias, length, name_length, _, traits = (
        _DATA_HEAD.unpack_from(data, 0)
    )
    name_end = _DATA_HEAD.size + name_length
    name = str(data[_DATA_HEAD.size : name_end], "utf-8", "replace")
    head = SegmentHead(topic_id, epoch, first_seq, payload, first_ts, last_ts, count, bias, length, traits, name)
    return head if head.text_at == name_end and head.file_bytes == len(data) and count else None


def chunk_is_good(data: memoryview, head: SegmentHead, chunk: int) -> bool:
    begin = head.text_at + chunk * CHUNK_BYTES
    end = min(begin + CHUNK_BYTES, head.checksums_at)
    expected = _CHECKSUM.unpack_from(data, head.checksums_at + 8 * chunk)[0]
    return bool(xxh3_64_intdigest(data[begin:end]) == expected)


def encode_index(
    topic_id: int,
    first_seq: int,
    rows: bytes,
    blocks: Sequence[tuple[int, int]],
    tags: Mapping[bytes, Sequence[int]],
    written: Sequence[int] = (),
) -> list[bytes]:
    """Returns the pieces of an `.idx` file.

    `blocks` are (index, ts), `tags` maps a tag's JSON string to record indexes, `written` has the time at which each
    block was written; without it, the ts is used.
    """
    times = b"" if not written or list(written) == [ts for _, ts in blocks] else _times(written)
    ordered = sorted(tags)
    table, postings = array("I"), array("I")
    string_end = 0
    for tag in ordered:
        string_end += len(tag)
        postings.extend(tags[tag])
        table.extend((string_end, len(postings)))
    head = _INDEX_HEAD.pack(
        _INDEX_WRITTEN_MAGIC if times else _INDEX_MAGIC, topic_id, first_seq, len(rows) // ROW_BYTES, len(blocks),
        len(ordered), string_end,
    )  # fmt: skip
    # An index and its four zero bytes form a number of eight bytes, like a ts.
    block_table = struct.pack(f"<{2 * len(blocks)}Q", *itertools.chain.from_iterable(blocks))
    pieces = [head, rows, block_table, table.tobytes(), b"".join(ordered), postings.tobytes(), times]
    digest = xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, _CHECKSUM.pack(digest.intdigest())]


def _times(written: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(written)}Q", *written)


def _sealed(magic: bytes, data: memoryview) -> bool:
    """Returns whether the checksum of an `.idx` file is correct with this magic."""
    digest = xxh3_64(magic)
    digest.update(data[8:-8])
    return bool(digest.intdigest() == _CHECKSUM.unpack_from(data, len(data) - 8)[0])


def data_bytes(name: str, count: int, text_bytes: int) -> int:
    """Returns the size of the `.data` file of a segment."""
    return _DATA_HEAD.size + len(name.encode()) + text_bytes + 8 * -(-text_bytes // CHUNK_BYTES) + 8 + count


class SegmentIndex:
    """An `.idx` file, verified when it is opened."""

    def __init__(self, data: memoryview) -> None:
        magic = bytes(data[:8])
        if len(data) < _INDEX_HEAD.size + 8 or not is_version_of(magic, _INDEX_MAGIC):
            raise ValueError("it is not a segment index")
        if magic not in (_INDEX_MAGIC, _INDEX_WRITTEN_MAGIC):
            # If only the version digit of the magic is damaged, everything else is valid for one of these versions.
            if any(_sealed(known, data) for known in (_INDEX_MAGIC, _INDEX_WRITTEN_MAGIC)):
                raise ValueError("it is not a segment index")
            raise NewerFormatError(f"a segment index of the format {str(magic, 'ascii')}")
        if not _sealed(magic, data):
            raise ValueError("it has a wrong checksum")
        _, self.topic_id, self.first_seq, self.count, self.block_count, self.tag_count, strings = (
            _INDEX_HEAD.unpack_from(data, 0)
        )
        rows_end = _INDEX_HEAD.size + ROW_BYTES * self.count
        blocks_end = rows_end + _BLOCK.size * self.block_count
        tags_end = blocks_end + 8 * self.tag_count
        strings_end = tags_end + strings
        has_times = magic == _INDEX_WRITTEN_MAGIC
        postings_end = len(data) - 8 - (8 * self.block_count if has_times else 0)
        if strings_end > postings_end or (postings_end - strings_end) % 4:
            raise ValueError("its lengths disagree")
        self.rows = data[_INDEX_HEAD.size : rows_end].cast("I")
        self._block_starts = data[rows_end:blocks_end].cast("I")[0::4]
        self._block_times = data[rows_end:blocks_end].cast("Q")[1::2]
        self._tags = data[blocks_end:tags_end].cast("I")
        self._strings = data[tags_end:strings_end]
        self._postings = data[strings_end:postings_end].cast("I")
        # Follows strings of any length, so it may be unaligned for a view of numbers.
        self._written = array("Q", bytes(data[postings_end:-8])) if has_times else self._block_times

    def blocks(self) -> list[tuple[int, int]]:
        """Returns (index of the first record, ts) of every block."""
        return list(zip(self._block_starts.tolist(), self._block_times.tolist(), strict=True))

    def ts_at(self, index: int) -> int:
        return int(self._block_times[bisect_right(self._block_starts, index) - 1])

    def count_before(self, deadline: int) -> int:
        """Returns the number of leading records with a ts before `deadline`; times never decrease in a topic."""
        place = bisect_left(self._block_times, deadline)
        return int(self._block_starts[place]) if place < self.block_count else self.count

    def count_written_before(self, deadline: int) -> int:
        """Returns the number of leading records that were written before a time; these times never decrease either."""
        place = bisect_left(self._written, deadline)
        return int(self._block_starts[place]) if place < self.block_count else self.count

    def written(self) -> list[int]:
        """The time at which each block was written."""
        return self._written.tolist()

    def tag_at(self, place: int) -> bytes:
        begin = self._tags[2 * place - 2] if place else 0
        return bytes(self._strings[begin : self._tags[2 * place]])

    def postings_at(self, place: int) -> list[int]:
        begin = self._tags[2 * place - 1] if place else 0
        return self._postings[begin : self._tags[2 * place + 1]].tolist()

    def first_tag_from(self, text: bytes) -> int:
        """Returns the position of the first tag that is not below `text`, by bytes."""
        lo, hi = 0, self.tag_count
        while lo < hi:
            middle = (lo + hi) // 2
            if self.tag_at(middle) < text:
                lo = middle + 1
            else:
                hi = middle
        return lo
