"""Where a read begins and ends. An offset is a topic's epoch and a seq: everything up to that seq has been read.

That is the cursor of the API, and since seqs begin at 1 it is also Kafka's convention: the number of the next record,
counted from 0. In a checkpoint and in JSON it is written

    {"orders": {"epoch": 3, "seq": 1200}, "invoices": {"epoch": 4, "seq": 0}}

and a user may leave the epoch out, or write `"earliest"`, `"latest"` or a bare number for a topic.

A stream writes its offsets with every micro-batch, of all topics and whether they changed or not. Those of more than
`PLAIN_MAX` topics are written as one word, a fifth as long:

    {"packed": base64 of zlib of the JSON of [names in order, differences of the epochs, seqs]}
"""

import base64
import zlib
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec

Word = Literal["earliest", "latest"]
PLAIN_MAX = 100
_PACKED = "packed"

Offset = dict[str, int]
"""`{"epoch": ..., "seq": ...}`, in the plain types that Spark's checkpoint takes."""
Offsets = dict[str, Offset]


class Point(msgspec.Struct, frozen=True):
    """A cursor that a user gave; epoch 0 stands for whichever the topic has."""

    seq: int
    epoch: int = 0


class Bound(msgspec.Struct, frozen=True):
    """One end of a read: a word for all topics, and what single topics have instead."""

    word: Word
    by_topic: Mapping[str, Word | Point] = {}

    def of(self, topic: str) -> Word | Point:
        return self.by_topic.get(topic, self.word)


def parse_bounds(text: str, option: str) -> Bound:
    """Reads `startingOffsets` or `endingOffsets`; raises ValueError with what is accepted."""
    if text == "earliest":
        return Bound("earliest")
    if text == "latest":
        return Bound("latest")
    word: Word = "earliest" if option == "startingOffsets" else "latest"
    try:
        decoded = msgspec.json.decode(text, type=dict[str, Any])
        return Bound(word, {name: _point(value) for name, value in decoded.items()})
    except (msgspec.DecodeError, ValueError):
        raise ValueError(
            f"option {option} is {text!r}; accepted is earliest, latest or JSON such as "
            '{"orders": 1200, "invoices": {"epoch": 4, "seq": 0}, "events": "latest"}'
        ) from None


def _point(value: object) -> Word | Point:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Point(value)
    return msgspec.convert(value, Point)


def to_checkpoint(offsets: Offsets) -> dict[str, Any]:
    """Offsets as Spark writes them down."""
    if len(offsets) <= PLAIN_MAX:
        return dict(offsets)
    names = sorted(offsets)
    epochs = [offsets[name]["epoch"] for name in names]
    steps = [after - before for before, after in pairwise([0, *epochs])]
    columns = msgspec.json.encode([names, steps, [offsets[name]["seq"] for name in names]])
    return {_PACKED: base64.b64encode(zlib.compress(columns, 6)).decode()}


def from_checkpoint(written: Mapping[str, Any]) -> Offsets:
    """The offsets of a checkpoint, in either form. A topic may be called `packed`: its offset is no string."""
    word = written.get(_PACKED)
    if not isinstance(word, str):
        return dict(written)
    columns = zlib.decompress(base64.b64decode(word))
    names, steps, seqs = msgspec.json.decode(columns, type=tuple[list[str], list[int], list[int]])
    return {name: offset(epoch, seq) for name, epoch, seq in zip(names, accumulate(steps), seqs, strict=True)}


def offset(epoch: int, seq: int) -> Offset:
    return {"epoch": epoch, "seq": seq}
