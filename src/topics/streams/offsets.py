"""Offsets: positions in a stream as text that sorts by position (also known as: cursor, resume token).

    128 bits, big endian:   epoch u32 | counter u64 | in_block u32
    text:                   26 digits of Crockford's base 32, two zero bits in front, capitals

`counter` is the number of entries before the position: 0 is the start, the offset of an entry is the position after
it. `in_block` is the number of bytes of the next entry that also lie before it; only bytes streams with entries larger
than an answer need it. `epoch` identifies the stream: a recreated stream has another one, so an offset of the old one
is refused instead of leading to a wrong position.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, OffsetGoneError, quoted
from topics.streams.stream_state import stream_of

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_VALUES |= {digit.lower(): value for digit, value in _VALUES.items()}
_VALUES |= {"o": 0, "O": 0, "i": 1, "I": 1, "l": 1, "L": 1}
_PAIRS = tuple(a + b for a in _DIGITS for b in _DIGITS)
_LENGTH = 26
_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF

START = "-1"
NOW = "now"


class Position(NamedTuple):
    """A position in the entries of a stream."""

    counter: int
    in_block: int = 0


def encode_offset(epoch: int, counter: int, in_block: int = 0) -> str:
    # Every answer has one or two offsets, and recent ones share their first digits, so those are cached.
    word = (epoch & _U32) << 96 | counter << 32 | in_block
    return _front(word >> _BACK_BITS) + (_digits(word & _BACK_MASK, _BACK_BITS) if in_block else _BACKS[counter & 255])


def _digits(word: int, bits: int) -> str:
    """Two digits at a time."""
    return "".join([_PAIRS[word >> shift & 1023] for shift in range(bits - 10, -1, -10)])


@lru_cache(maxsize=1024)
def _front(word: int) -> str:
    return _digits(word, 90)


_BACK_BITS = 40
_BACK_MASK = (1 << _BACK_BITS) - 1
_BACKS = tuple(_digits(counter << 32, _BACK_BITS) for counter in range(256))
"""The last eight digits of positions between entries, by the low bits of their counters."""


def decode_offset(text: str) -> tuple[int, int, int]:
    """Epoch, counter and in_block. Raises InvalidRequestError for anything that is not 26 digits below 2^128."""
    word = 0
    if len(text) == _LENGTH:
        try:
            for digit in text:
                word = word << 5 | _VALUES[digit]
        except KeyError:
            word = 1 << 128
    if len(text) != _LENGTH or word >> 128:
        raise InvalidRequestError(f"{quoted(text)} is not an offset of this server", field="offset")
    return word >> 96, word >> 32 & _U64, word & _U32


def epoch_at(topic: Topic, counter: int) -> int:
    """The epoch of offsets at a position: entries that a fork inherited keep the epoch of the source."""
    origin = topic.origin
    if origin is not None and counter <= origin.upto:
        return origin.holder(counter)[0].epoch & _U32
    state = stream_of(topic)
    for upto, epoch in state.epochs if state is not None else ():
        if counter <= upto:
            return epoch
    return topic.epoch & _U32


def offset_of(topic: Topic, position: Position) -> str:
    counter, in_block = position
    # A position inside an entry has the epoch of that entry.
    return encode_offset(epoch_at(topic, counter + (in_block > 0)), counter, in_block)


def offsets_of(topic: Topic, counters: Sequence[int]) -> list[str]:
    """The offsets of many positions between entries."""
    state = stream_of(topic)
    if topic.origin is not None or (state is not None and state.epochs):
        return [offset_of(topic, Position(counter)) for counter in counters]
    epoch = (topic.epoch & _U32) << 96 >> _BACK_BITS
    return [_front(epoch | counter >> 8) + _BACKS[counter & 255] for counter in counters]


def tail_offset(topic: Topic) -> str:
    return offset_of(topic, Position(topic.head))


def read_offset(topic: Topic, text: str, *, beyond_end: bool = False) -> Position:
    """The position of an offset in this stream. Raises OffsetGoneError for an offset of another stream, and for one
    beyond the end unless `beyond_end` permits it."""
    if text == START:
        return Position(0)
    epoch, counter, in_block = decode_offset(text)
    if not counter and not in_block and not epoch:
        return Position(0)
    if epoch != epoch_at(topic, counter + (in_block > 0)):
        raise OffsetGoneError(
            f"the offset {text} belongs to another stream of the name {quoted(topic.name)}", stream=topic.name
        )
    if counter > topic.head or (counter == topic.head and in_block):
        if beyond_end:
            return Position(counter)
        raise OffsetGoneError(f"the offset {text} is beyond the end of stream {quoted(topic.name)}", stream=topic.name)
    return Position(counter, in_block)
