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

# The hits of a search on their way: column by column, because a page has many and they are shown all together.
#
# A search that is sorted by nothing but the offset has one column: its places are its seqs, and its scores are all 0.


class Hit(msgspec.Struct, array_like=True, frozen=True):
    place: list[Any]
    seq: int
    score: float


class Hits(msgspec.Struct, array_like=True, frozen=True):
    """Hits, the first one first."""

    seqs: list[int] = []
    scores: list[float] = []
    """None at all where each is 0."""
    keys: list[list[Any] | None] = []
    """The values of each key of the sort; None for the offset, whose values are the seqs."""

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[Hit]:
        return map(self.__getitem__, range(len(self.seqs)))

    def __getitem__(self, index: int) -> Hit:
        return Hit(self.place(index), self.seqs[index], self.scores[index] if self.scores else 0.0)

    def place(self, index: int) -> list[Any]:
        """The values of the keys of one hit."""
        return [self.seqs[index] if values is None else values[index] for values in self.keys]

    def between(self, begin: int, end: int) -> "Hits":
        """From one of them up to another."""
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
    """Entries that follow each other without a hole."""

    first_seq: int
    count: int
    bias: int
    rows_bytes: int
    text_bytes: int


class Open(_Head, frozen=True):
    """Begins an index. Without a search description in its registry it knows routing keys only."""

    index: int
    registry: bytes


class Add(_Head, frozen=True):
    """Entries behind all that the index has. They begin another of its chunks if `new`."""

    index: int
    pieces: tuple[Piece, ...]
    new: bool = False


class Trim(_Head, frozen=True):
    """Forgets the chunks that have nothing from `first` on."""

    index: int
    first: int


class Drop(_Head, frozen=True):
    index: int


class Close(_Head, frozen=True):
    """An index file that is not asked again: its file is going, and must not take room because it is mapped."""

    path: str


class SearchQuery(msgspec.Struct, array_like=True, frozen=True, tag="search"):
    q: str
    sort: tuple[str, ...]
    size: int
    after: list[Any] | None = None
    """Converts offsets to their seqs."""
    count_all: bool = False
    ranked: bool = False
    """Whether scores are by rarity."""
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
    """An index file that is asked about the entries from `first` to `last`."""

    path: str
    first: int
    last: int
    seal: int | None = None
    """The checksum of its directory; a file with another one is not asked. None where the manifest has none."""


class AskMessage(_Head, frozen=True):
    """A query about the entries of the index from `first` to `last`, and about those of index files behind them, that
    are not `removed`."""

    request: int
    index: int
    deadline: float
    """On the clock that all processes of the machine share."""
    first: int
    last: int
    removed: tuple[SeqRange, ...]
    query: Query
    mapped: tuple[Mapped, ...] = ()
    """Asked one after the other, for as long as that is short (`Result.looked_up`)."""
    stays: bool = False
    """Whether more parts follow, or may have to: what was found is then kept under `request` until it is finished."""
    is_last: bool = False
    """Of a query that stays: whether no further part follows, as with `More`."""
    owner: str = ""
    """The owner of the query: questions of different owners are answered in turns."""


class More(_Head, frozen=True):
    """Further parts of a query that stays: the entries of the body, those of index files, and those of the index from
    `first` to `last`; of all but the body, those that are not `removed`."""

    request: int
    asked: int
    """The request of the query."""
    pieces: tuple[Piece, ...] = ()
    first: int = 1
    last: int = 0
    removed: tuple[SeqRange, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    """Asked one after the other, for as long as that is short (`Result.looked_up`)."""
    is_last: bool = False
    """Whether no further part follows: nobody has to finish the query then if all of these were asked."""
    owner: str = ""


class Finish(_Head, frozen=True):
    """Ends a query that stays and was not finished with its last part; its answer is what all its parts gave."""

    request: int
    asked: int
    owner: str = ""


NO_INDEX = 0
"""Of a filter over records that nothing describes (`topics.search.query.schemaless_filter`)."""


class Filter(_Head, frozen=True):
    """Which entries of the body a filter lets through."""

    request: int
    index: int
    filter: str
    pieces: tuple[Piece, ...]


class Seek(_Head, frozen=True):
    """Where in an index file the first entries are that have a routing key, that a filter lets through, or both."""

    request: int
    index: int
    """The index with the description of the entries; NO_INDEX for a key alone."""
    mapped: Mapped
    key: str | None
    filter: str
    limit: int


class Result(msgspec.Struct, array_like=True, frozen=True):
    """The answer of an index; the query decides which fields are used."""

    hits: Hits = Hits()
    is_full: bool = False
    """Whether there may be more behind the hits, or the keys."""
    matched: int = 0
    buckets: bytes = b"[]"
    """As JSON, which is passed on without decoding."""
    keys: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    scanned_bytes: int = 0
    """Bytes scanned by a filter, or by a query outside its index."""
    scanned: int = 0
    """Entries of these."""
    looked_at: int = 0
    """Entries in all."""
    missed: int = 0
    first_missed: int | None = None
    enough: bool = False
    """Of a query that stays: whether no further part can change its answer."""
    spent: str | None = None
    memory_bytes: int = 0
    """Of the index that was asked."""
    indexed: int = 0
    """The number of entries examined in index files."""
    rolled: bool = False
    """Whether some of an aggregation had been added up before."""
    looked_up: int = 0
    """How many of several index files were asked, the first ones."""
    unreadable: str = ""
    """Why the index file that was to be asked next cannot be; nothing was asked of it then."""
    counted: tuple[int, ...] = ()
    """The statistics that a ranking needs."""
    is_final: bool = False
    """Whether this is the answer of a query, and the query finished."""


class Answer(_Head, frozen=True):
    request: int
    result: Result | None
    problem: str = ""


Question = AskMessage | More | Finish | Filter | Seek
"""Messages that are answered."""
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
    """Reassembles messages from received bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        if not buffer and len(data) >= 4 and 4 + _LENGTH.unpack_from(data)[0] == len(data):
            # One message and nothing else, as most answers come.
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
