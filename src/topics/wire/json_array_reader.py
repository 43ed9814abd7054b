"""Incremental reader for long JSON arrays, so that a large body does not block the loop.

A parser cannot be stopped within its input. So the array is cut into portions, and each is parsed as a separate array.
The cut is guessed first: after a text that looks like the end of an element. A guess needs no proof: if every portion
is an array, and the rest of the body without them is valid, the whole is JSON, which has only one parse. A wrong guess,
such as in a string, gives a portion that is not an array; then brackets are counted, which is slower but exact. Errors
are reported only for portions that were cut exactly.

    {"records":[ ... , ... , ... ],"node":"a"}
    prefix     [ portion, portion  ] suffix
"""

import re
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from topics.model.errors import InvalidRequestError
from topics.model.limits import KIB, MIB

T = TypeVar("T")

LARGE_BYTES = MIB
"""Up to this size a body is read at once, which takes at most a few milliseconds."""
PORTION_BYTES = 64 * KIB
"""Bytes parsed at a time, unless a single element is longer."""
BESIDE_BYTES = 32 * KIB
"""Maximum bytes of a large body before its array, and after it."""
_GUESSES_MAX = 3
_TOKENS_MAX = 2_000
"""The number of brackets counted at a time: about a millisecond of work."""


def _any_of(within: bytes) -> bytes:
    """A possessive repetition. With `(?:...)*+` Python before 3.11.5, such as in Debian 12, finds wrong ends."""
    return rb"(?>(?:" + within + rb")*)"


_SPACE = re.compile(rb"[ \t\n\r]*+")
_IN_TEXT = _any_of(rb'[^"\\]++|\\.')
_STRING = rb'"' + _IN_TEXT + rb'"'
_ATOMS = rb'[^"\[\]{}]++|' + _STRING


def _nested(levels: int) -> bytes:
    """Whole values, with containers of this many levels, which are skipped without a Python step."""
    within = _ATOMS
    for _ in range(levels):
        within = _ATOMS + rb"|[\[{]" + _any_of(within) + rb"[\]}]"
    return within


_WITHIN = re.compile(_any_of(_nested(3)), re.DOTALL)
"""The pattern of text that can be skipped inside an element."""
_BETWEEN = re.compile(_any_of(rb'[^"\[\]{},]++|' + _STRING + rb"|[\[{]" + _any_of(_nested(3)) + rb"[\]}]"), re.DOTALL)
"""The same up to a comma in the array itself."""
_TEXT = re.compile(_IN_TEXT, re.DOTALL)
_KEY = re.compile(rb"[ \t\n\r]*+(" + _STRING + rb")[ \t\n\r]*+:[ \t\n\r]*+", re.DOTALL)
_QUOTE, _COMMA, _OPEN, _OPEN_LIST, _CLOSE, _CLOSE_LIST = b'",{[}]'
_ENDS = {_OPEN: b"}", _OPEN_LIST: b"]", _QUOTE: b'"'}
_BYTE = re.compile(r"\(byte (\d+)\)")
_TRUNCATED = "Input data was truncated"


class Kind(NamedTuple):
    """The kind of an array: the parser of its portions, and its limits."""

    what: str
    """The name of the body in error messages, and the path of the array in it."""
    at: str
    max_items: int
    max_item_bytes: int
    """The maximum size of an element. The caller checks the limits of its parts."""
    too_many: Callable[[], Exception]
    too_large: Callable[[int], Exception]
    """Gets the index of the element."""


class Scan:
    """Counts brackets from a position on, a bounded number at a time, to find the end of an element or of the array."""

    __slots__ = ("_depth", "_in_text", "body", "ended", "pos")

    def __init__(self, body: memoryview, pos: int, depth: int = 0) -> None:
        """`depth` is the number of brackets to close before its array is reached."""
        self.body = body
        self.pos = pos
        self.ended = False
        """Whether it is at the bracket that closes the array, and not at a comma."""
        self._depth = depth
        self._in_text = False

    def step(self) -> bool:
        """Continues. Returns whether it is at a comma of the array, at its end, or at the end of the body."""
        window = bytes(self.body[self.pos : self.pos + PORTION_BYTES])
        is_last = self.pos + len(window) == len(self.body)
        place, found = 0, False
        for _ in range(_TOKENS_MAX):
            before = place
            if self._in_text:
                place = _match_end(_TEXT, window, place)
                if place < len(window) and window[place] == _QUOTE:
                    self._in_text = False
                    place += 1
            else:
                place = _match_end(_WITHIN if self._depth else _BETWEEN, window, place)
                if place < len(window):
                    found = self._meets(window[place])
                    place += not found
            if found or place in (before, len(window)):
                # A text whose last byte here is a backslash ends the window; the next one begins with it.
                break
        if is_last and place == before and not found:
            place = len(window)
        self.pos += place
        return found or (is_last and place == len(window))

    def _meets(self, token: int) -> bool:
        if token == _COMMA:
            return True
        if token == _QUOTE:
            # A text that continues after the examined bytes.
            self._in_text = True
        elif token in (_OPEN, _OPEN_LIST):
            self._depth += 1
        elif self._depth:
            self._depth -= 1
        else:
            self.ended = True
            return True
        return False


def _match_end(pattern: "re.Pattern[bytes]", text: bytes, pos: int = 0) -> int:
    found = pattern.match(text, pos)
    assert found is not None, "each of them matches nothing as well"
    return found.end()


class JsonArrayReader(Generic[T]):
    """Reads an array. Call `step` until it reports the end; then `items` and `end` are valid."""

    __slots__ = ("_body", "_decode", "_exact", "_guesses", "_kind", "_scan", "_start", "end", "items")

    def __init__(self, body: memoryview, start: int, decode: Callable[[bytes], list[T]], kind: Kind) -> None:
        """`start` is after the bracket that opens the array."""
        self._body = body
        self._start = start
        self._decode = decode
        self._kind = kind
        self._scan: Scan | None = None
        self._exact = 0
        """The end of the last element that was counted exactly."""
        self._guesses = 0
        self.items: list[T] = []
        self.end = 0
        """The position of the bracket that closes the array."""

    def step(self) -> bool:
        """Reads a portion, or looks for its end. Returns whether the array is complete. Raises `TopicsError`."""
        if self._scan is None:
            cut = self._guess()
            if cut:
                return self._take(cut, self._body[cut] == _CLOSE_LIST, guessed=True)
            self._scan = Scan(self._body, self._start)
            self._exact = self._start
        return self._count()

    def _guess(self) -> int:
        """Returns a guess of the portion's end; 0 if there is none."""
        if self._guesses >= _GUESSES_MAX:
            return 0
        body, start = self._body, self._start
        window = min(len(body), start + PORTION_BYTES)
        text = bytes(body[start:window])
        first = start + _match_end(_SPACE, text)
        if first >= window:
            return 0
        for _ in range(self._guesses + 1):
            if window == len(body):
                place = text.rfind(b"]")
                mark = b"]"
            else:
                mark = _ENDS.get(body[first], b"") + b","
                place = text.rfind(mark)
            if place < 0:
                return 0
            text = text[:place]
        self._guesses += 1
        return start + place + len(mark) - 1

    def _count(self) -> bool:
        """Searches the exact end of the portion, for a bounded time."""
        scan = self._scan
        assert scan is not None
        over = scan.step()
        if scan.pos - self._exact > self._kind.max_item_bytes:
            if self._exact > self._start:
                # The text before it is checked first: it may be invalid as well.
                return self._take(self._exact - 1, False, guessed=False)
            raise self._kind.too_large(len(self.items))
        if not over:
            return False
        if scan.pos >= len(self._body):
            raise self._refusal(ValueError(_TRUNCATED))
        if scan.ended and self._body[scan.pos] != _CLOSE_LIST:
            raise self._refusal(ValueError(f"JSON is malformed: expected ']' (byte {scan.pos + 1 - self._start})"))
        if scan.ended or scan.pos - self._start >= PORTION_BYTES:
            return self._take(scan.pos, scan.ended, guessed=False)
        scan.pos += 1
        self._exact = scan.pos
        return False

    def _take(self, cut: int, last: bool, *, guessed: bool) -> bool:
        """Reads the portion up to `cut`."""
        text = bytes(self._body[self._start : cut])
        try:
            if not text.isascii():
                text.decode()
            items = self._decode(b"[" + text + b"]")
            if not items and (self.items or not last):
                raise ValueError("JSON is malformed: a value is missing")
        except (ValueError, RecursionError) as error:
            if guessed:
                return False
            raise self._refusal(error) from error
        self.items += items
        if len(self.items) > self._kind.max_items:
            raise self._kind.too_many()
        self._scan = None
        self._guesses = 0
        self._start = cut + 1
        self.end = cut
        return last

    def _refusal(self, error: Exception) -> InvalidRequestError:
        """Adds the position in the whole array."""
        said = _BYTE.sub(lambda found: f"(byte {int(found[1]) + self._start - 1})", str(error))
        at, count = self._kind.at, len(self.items)
        said = re.sub(r"\$\[(\d+)\]", lambda found: f"${at}[{int(found[1]) + count}]", said, count=1)
        shown = error if isinstance(error, (RecursionError, UnicodeDecodeError)) else ValueError(said)
        return InvalidRequestError.from_decode(self._kind.what, shown, bytes(self._body[-16:]))


def find_array(body: memoryview, name: bytes) -> int:
    """Returns the start of a member's array, after its bracket; 0 if it is not among the first members of the
    object."""
    head = bytes(body[:BESIDE_BYTES])
    pos = _match_end(_SPACE, head)
    if head[pos : pos + 1] != b"{":
        return 0
    pos += 1
    while True:
        key = _KEY.match(head, pos)
        if key is None:
            return 0
        pos = key.end()
        if key[1] == b'"%b"' % name:
            return pos + 1 if head[pos : pos + 1] == b"[" else 0
        scan = Scan(memoryview(head), pos)
        while not scan.step():
            pass
        if scan.ended or scan.pos >= len(head):
            return 0
        pos = scan.pos + 1
