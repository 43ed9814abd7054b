"""Frames of transactions, and their part of a snapshot. All numbers are little endian; a mark is msgpack.

    TXN_BEGIN    mark (`Begun`)
    TXN_STAGE    "TXS1" | u32 length of the mark | mark (`Staged`) | block (`log.frame`)
    TXN_END      mark (`Ended`)
    TXN_APPEND   "TXA1" | u64 number of the commit | block
    TXN_COMMIT   mark (`Committed`)

All but TXN_APPEND are frames of the transaction log topic. A TXN_APPEND is a frame of the topic of its records, and is
valid only if a TXN_COMMIT with the same number is in the log: it is synced before the commit is written, and both are
before a checkpoint or both after it. Without the commit the seqs are skipped, because no reader has seen them.

The magic words at the start distinguish these bodies from those of other frames, even if the kind of a frame is
damaged.

The part of the transaction log topic is the msgpack of `TransactionsPart`, under the name `transactions`.
"""

from struct import Struct

import msgspec

from topics.queues.queue_frames import JobTerms

PART_NAME = "transactions"

_STAGE = Struct("<4sI")
_STAGE_WORD = b"TXS1"
_APPEND = Struct("<4sQ")
_APPEND_WORD = b"TXA1"


class Begun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An attempt at a transaction begins, and replaces any other of its id."""

    id: str
    sequence: int
    attempt: str
    owner: str
    timeout_ms: int
    now_ms: int


class Staged(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The transaction and the topic for which the records of a block are staged."""

    id: str
    sequence: int
    attempt: str
    part: str
    topic: str
    now_ms: int
    create: bool | None = None
    config: bytes | None = None
    """The config as JSON, for a topic that the commit creates."""
    terms: JobTerms | None = None
    """The delay of jobs of a queue."""


class Ended(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An attempt ended without a commit."""

    id: str
    sequence: int
    attempt: str


class Placed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The position of the records of one topic in a commit."""

    topic: str
    first_seq: int
    last_seq: int
    count: int


class Committed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A transaction is committed: the appends with its number are valid."""

    number: int
    id: str
    sequence: int
    now_ms: int
    placed: list[Placed]


class PartState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Staged records: their position in the transaction log topic, and their destination."""

    name: str
    topic: str
    first_seq: int
    count: int
    size: int
    """Payload bytes."""
    create: bool | None
    config: bytes | None
    terms: JobTerms | None = None


class OpenState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: str
    sequence: int
    attempt: str
    owner: str
    timeout_ms: int
    touched_ms: int
    parts: list[PartState]


class KnownState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The last commit of an id."""

    id: str
    sequence: int
    now_ms: int
    placed: list[Placed]


class TransactionsPart(msgspec.Struct, array_like=True, frozen=True):
    open: list[OpenState] = []
    known: list[KnownState] = []


encode_mark = msgspec.msgpack.Encoder().encode
decode_begun = msgspec.msgpack.Decoder(Begun).decode
decode_ended = msgspec.msgpack.Decoder(Ended).decode
decode_committed = msgspec.msgpack.Decoder(Committed).decode
decode_part = msgspec.msgpack.Decoder(TransactionsPart).decode
_decode_staged = msgspec.msgpack.Decoder(Staged).decode


def encode_stage_head(staged: Staged) -> bytes:
    """Encodes a TXN_STAGE before its block."""
    mark = encode_mark(staged)
    return _STAGE.pack(_STAGE_WORD, len(mark)) + mark


def decode_stage(body: memoryview) -> tuple[Staged, memoryview]:
    """Decodes a staging frame: its header and its block."""
    mark, block = _split_stage(body)
    return _decode_staged(mark), block


def staged_block(body: memoryview) -> memoryview:
    return _split_stage(body)[1]


def encode_append_head(number: int) -> bytes:
    """Encodes a TXN_APPEND before its block."""
    return _APPEND.pack(_APPEND_WORD, number)


def decode_append(body: memoryview) -> tuple[int, memoryview]:
    """Returns the number of an append's commit, and its block."""
    word, number = _APPEND.unpack_from(body, 0)
    if word != _APPEND_WORD:
        raise ValueError("an append of a transaction without its word")
    return number, body[_APPEND.size :]


def _split_stage(body: memoryview) -> tuple[memoryview, memoryview]:
    word, length = _STAGE.unpack_from(body, 0)
    end = _STAGE.size + length
    if word != _STAGE_WORD or end > len(body):
        raise ValueError("a stage of a transaction whose lengths disagree")
    return body[_STAGE.size : end], body[end:]
