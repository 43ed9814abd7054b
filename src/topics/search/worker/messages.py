"""Messages between the server and its search process, over one connection in both directions.

    u32 length of the rest | u8 kind | u32 length of the head | head as msgpack | body

in little endian. The body holds stored entries: for each piece of the head its rows, then its text
(`topics.model.records`). Messages are taken in the order in which they were sent, so a query sees the entries that were
sent before it. Both sides are of one version and of one machine, and nothing of this is stored.
"""

from collections.abc import Container, Iterator, Sequence
from enum import IntEnum
from itertools import compress
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from topics.model.records import words
from topics.model.seq_ranges import SeqRange
from topics.wire.record_slicing import View

# Hits are sent column by column, because a page has many and all of them are rendered together.
#
# A search that is sorted by the offset alone has one column: the positions are the seqs, and all scores are 0.


class Hit(msgspec.Struct, array_like=True, frozen=True):
    place: list[Any]
    seq: int
    score: float


class Hits(msgspec.Struct, array_like=True, frozen=True):
    """Hits in the order of the sort."""

    seqs: list[int] = []
    scores: list[float] = []
    """Empty if all scores are 0."""
    keys: list[list[Any] | None] = []
    """The values of each key of the sort; None for the offset, whose values are the seqs."""

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[Hit]:
        return map(self.__getitem__, range(len(self.seqs)))

    def __getitem__(self, index: int) -> Hit:
        return Hit(self.place(index), self.seqs[index], self.scores[index] if self.scores else 0.0)

    def place(self, index: int) -> list[Any]:
        """The sort values of one hit."""
        return [self.seqs[index] if values is None else values[index] for values in self.keys]

    def between(self, begin: int, end: int) -> "Hits":
        """The hits from index `begin` to before `end`."""
        if begin == 0 and end >= len(self.seqs):
            return self
        keys = [None if values is None else values[begin:end] for values in self.keys]
        return Hits(self.seqs[begin:end], self.scores[begin:end], keys)

    def only(self, requested: Container[int]) -> "Hits":
        """The hits with the given seqs, in the same order."""
        chosen = [seq in requested for seq in self.seqs]
        keys = [None if values is None else list(compress(values, chosen)) for values in self.keys]
        return Hits(list(compress(self.seqs, chosen)), list(compress(self.scores, chosen)), keys)


_FRAME = Struct("<IBI")
_LENGTH = Struct("<I")
_encode = msgspec.msgpack.Encoder().encode


class Kind(IntEnum):
    OPEN = 1
    ADD = 2
    DROP = 3
    ASK = 4
    FILTER = 5
    ANSWER = 6
    TRIM = 7
    MORE = 8
    FINISH = 9
    SEEK = 10
    CLOSE = 11


class _Head(msgspec.Struct, array_like=True, frozen=True):
    """The head of a message."""


class Piece(_Head, frozen=True):
    """Consecutive entries, without gaps."""

    first_seq: int
    count: int
    bias: int
    rows_bytes: int
    text_bytes: int


class Open(_Head, frozen=True):
    """Creates an index. If its registry has no search description, it indexes routing keys only."""

    index: int
    registry: bytes


class Add(_Head, frozen=True):
    """Appends entries to an index, behind those it has. `new` starts another chunk."""

    index: int
    pieces: tuple[Piece, ...]
    new: bool = False


class Trim(_Head, frozen=True):
    """Drops the chunks whose entries are all before `first`."""

    index: int
    first: int


class Drop(_Head, frozen=True):
    index: int


class Close(_Head, frozen=True):
    """Unmaps an index file that will be removed, so that its disk space can be freed."""

    path: str


class SearchQuery(msgspec.Struct, array_like=True, frozen=True, tag="search"):
    q: str
    sort: tuple[str, ...]
    size: int
    after: list[Any] | None = None
    """The sort values of the last hit of the previous page, with offsets as seqs."""
    count_all: bool = False
    ranked: bool = False
    """Whether hits are scored by BM25, in which rare terms weigh more."""
    statistics: tuple[int, ...] = ()
    """Counts for the ranking (`topics.search.query.score.Statistics`)."""


class CountQuery(msgspec.Struct, array_like=True, frozen=True, tag="count"):
    """The document frequencies of a query's terms."""

    q: str


class AggregateQuery(msgspec.Struct, array_like=True, frozen=True, tag="aggregate"):
    body: bytes


class KeysQuery(msgspec.Struct, array_like=True, frozen=True, tag="keys"):
    after: str | None
    limit: int


Query = SearchQuery | CountQuery | AggregateQuery | KeysQuery


class Mapped(msgspec.Struct, array_like=True, frozen=True):
    """An index file and the range of entries to search in it, `first` to `last`."""

    path: str
    first: int
    last: int
    seal: int | None = None
    """The checksum of the file's directory; a file with another checksum is refused. None if the manifest has no
    checksum."""


class AskMessage(_Head, frozen=True):
    """Starts a query over the entries `first` to `last` of the memory index, and over those of `mapped` index files.
    Entries in `removed` are excluded."""

    request: int
    index: int
    deadline: float
    """By the machine's monotonic clock, which all processes share."""
    first: int
    last: int
    removed: tuple[SeqRange, ...]
    query: Query
    mapped: tuple[Mapped, ...] = ()
    """Searched in this order, until the time slice ends (`Result.looked_up`)."""
    stays: bool = False
    """Whether the query stays open under `request`, because further parts may follow (`More`, `Finish`)."""
    is_last: bool = False
    """For an open query: whether no part follows."""
    owner: str = ""
    """The API key that sent the query; owners are served round-robin."""


class More(_Head, frozen=True):
    """Further parts of an open query: the entries of the body, those of index files, and those of the memory index from
    `first` to `last`. Entries in `removed` are excluded, except from the body."""

    request: int
    asked: int
    """The request number of the open query."""
    pieces: tuple[Piece, ...] = ()
    first: int = 1
    last: int = 0
    removed: tuple[SeqRange, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    """Searched in this order, until the time slice ends (`Result.looked_up`)."""
    is_last: bool = False
    """Whether no part follows. If all parts were searched, the answer is final and needs no `Finish`."""
    owner: str = ""


class Finish(_Head, frozen=True):
    """Ends an open query; the answer combines the results of all its parts."""

    request: int
    asked: int
    owner: str = ""


NO_INDEX = 0
"""The index number of a filter over records without a search description (`topics.search.query.schemaless_filter`)."""


class Filter(_Head, frozen=True):
    """Asks which entries of the body match a filter."""

    request: int
    index: int
    filter: str
    pieces: tuple[Piece, ...]


class Seek(_Head, frozen=True):
    """Asks for the first entries of an index file that have a routing key, match a filter, or both."""

    request: int
    index: int
    """The index whose description applies; NO_INDEX if only a key is given."""
    mapped: Mapped
    key: str | None
    filter: str
    limit: int


class Result(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a question. The query decides which fields are set."""

    hits: Hits = Hits()
    is_full: bool = False
    """Whether more hits or keys may follow."""
    matched: int = 0
    buckets: bytes = b"[]"
    """Encoded JSON, passed on without decoding."""
    keys: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    scanned_bytes: int = 0
    """Bytes scanned by a filter or a query, outside of indexes."""
    scanned: int = 0
    """The number of scanned entries."""
    looked_at: int = 0
    """The number of examined entries."""
    missed: int = 0
    first_missed: int | None = None
    enough: bool = False
    """For an open query: whether no further part can change the answer."""
    spent: str | None = None
    memory_bytes: int = 0
    """The memory of the index that was queried."""
    indexed: int = 0
    """The number of entries examined in index files."""
    rolled: bool = False
    """Whether a part of the aggregation came from a rollup."""
    looked_up: int = 0
    """The number of index files that were searched, from the first one on."""
    unreadable: str = ""
    """The reason why the next index file could not be read; it contributed nothing."""
    counted: tuple[int, ...] = ()
    """The term statistics that ranking needs."""
    is_final: bool = False
    """Whether the query is finished and this is its answer."""


class Answer(_Head, frozen=True):
    request: int
    result: Result | None
    problem: str = ""


Question = AskMessage | More | Finish | Filter | Seek
"""Messages that get an answer."""
Head = Open | Add | Trim | Drop | Close | Question | Answer
_KINDS: dict[type, Kind] = {
    Open: Kind.OPEN, Add: Kind.ADD, Trim: Kind.TRIM, Drop: Kind.DROP, AskMessage: Kind.ASK, More: Kind.MORE,
    Finish: Kind.FINISH, Filter: Kind.FILTER, Seek: Kind.SEEK, Answer: Kind.ANSWER, Close: Kind.CLOSE,
}  # fmt: skip
_DECODERS: dict[int, Any] = {kind: msgspec.msgpack.Decoder(head).decode for head, kind in _KINDS.items()}


def encode_message(head: Head, body: Sequence[bytes | memoryview] = ()) -> bytes:
    encoded = _encode(head)
    length = 5 + len(encoded) + sum([len(part) for part in body])
    return b"".join((_FRAME.pack(length, _KINDS[type(head)], len(encoded)), encoded, *body))


class Message(NamedTuple):
    head: Head
    body: memoryview


class Messages:
    """Reassembles messages from the received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        if not buffer and len(data) >= 4 and 4 + _LENGTH.unpack_from(data)[0] == len(data):
            # Most answers arrive as exactly one message.
            yield _message(data)
            return
        buffer += data
        while len(buffer) >= 4:
            (length,) = _LENGTH.unpack_from(buffer)
            if len(buffer) < 4 + length:
                return
            whole = bytes(memoryview(buffer)[: 4 + length])
            del buffer[: 4 + length]
            yield _message(whole)


def _message(whole: bytes) -> Message:
    _, kind, head_bytes = _FRAME.unpack_from(whole)
    view = memoryview(whole)[_FRAME.size :]
    return Message(_DECODERS[kind](view[:head_bytes]), view[head_bytes:])


def views(pieces: Sequence[Piece], body: memoryview) -> Iterator[tuple[int, View]]:
    """The first seq and the entries of each piece."""
    at = 0
    for piece in pieces:
        rows = body[at : at + piece.rows_bytes]
        at += piece.rows_bytes
        text = body[at : at + piece.text_bytes]
        at += piece.text_bytes
        # Copied, because a row must be aligned to be read as words.
        yield piece.first_seq, View(text, words(bytes(rows)), piece.bias, piece.count)
