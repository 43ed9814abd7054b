"""Request framing without the parser, and the request-head cache of a connection.

`HeadCache` has the heads that a connection has sent, so that a request with the same head needs no parser.
`RequestFramer` tracks the boundaries of requests in the bytes of the connection: a head can be cached only if its bytes
are known exactly, and a cached one can be used only while the parser is between two requests. So it counts the bytes
since that state, and those of requests whose heads were read.
"""

from copy import copy

from msgspec.structs import replace

from topics.http.exchange import Application, BatchHandler, OneRequest
from topics.http.messages import UNREAD_HEAD, Headers, RequestHead

# The request-head cache.
#
# Nearly every client sends the same head with each request of a kind, byte for byte, except for the length of the body:
#
#     POST /v0/topics/t HTTP/1.1\r\nHost: h\r\nContent-Length: 223\r\nContent-Type: application/json\r\n\r\n
#     |--------------------- front ----------------------------|   |------------- back -------------------|
#
# A request that arrives whole, on a connection without other requests in progress, and whose head is cached, needs no
# parser: equal bytes mean an equal head. The length is not parsed either: the number of received bytes determines its
# usual spelling, which the request must contain exactly. This saves two thirds of the work of a small request. Several
# requests in one piece, such as a worker's acknowledgement and its next append, are separated by their lengths.
#
# The cache keeps facts, not decisions. An admission of a head is cached together with the object that represented its
# inputs (`Application.admission`): once that object is replaced, for example because the server stops, the application
# checks again. A head whose limit is below the largest cached body size is passed to the parser each time.
#
# Each connection has its own cache. So a client cannot probe whether the head of another client, with its key, is
# cached; and a connection that never repeats a head soon bypasses the cache, with bounded memory.

HEAD_END = b"\r\n\r\n"

_KNOWN_MAX = 8
_FRUITLESS_MAX = 64
"""The number of consecutive unrepeated heads after which a connection bypasses the cache."""
_HEAD_BYTES_MAX = 2048
# A larger body rarely arrives in one piece, and its memory must be counted (`http.request_body`).
_BODY_BYTES_MAX = 128 * 1024
_DIGITS_MAX = len(str(_BODY_BYTES_MAX))
_READY_BYTES = 4096
_LENGTH = b"content-length"
# With one of these headers the head alone does not determine the framing of the request.
_SPECIAL = (b"expect", b"content-encoding", b"transfer-encoding")


class Known:
    __slots__ = ("admission", "back", "batch_handler", "front", "head", "head_nbytes")

    def __init__(self, head: RequestHead, front: bytes, back: bytes) -> None:
        self.head = head
        """Does not include the length of the body, which varies."""
        self.front = front
        """The whole head, if requests with it have no body."""
        self.back = back
        self.head_nbytes = len(front) + len(back)
        self.admission: object = None
        """The admission under which it was admitted; None if it must be checked."""
        self.batch_handler: BatchHandler | None = None
        """The batch handler of the head, under that admission."""


class HeadCache:
    """The heads that one connection has sent, and the last one."""

    __slots__ = (
        "_body_bytes_max", "_fruitless", "_known", "_last", "_last_cut", "_last_length", "_rest_bytes_max", "admission",
        "batch_handler", "head", "lead", "nbytes",
    )  # fmt: skip

    def __init__(self, body_bytes_max: int) -> None:
        self._known: list[Known] = []
        self._body_bytes_max = min(body_bytes_max, _BODY_BYTES_MAX)
        self._rest_bytes_max = self._body_bytes_max + len(str(self._body_bytes_max))
        """The number of bytes of the longest body and its length field."""
        self._fruitless = 0
        self._last: Known | None = None
        # Everything before the body of the last extracted request, and the length of that body. Cleared when another
        # head is used.
        self._last_cut = b""
        self._last_length = 0
        self.head = UNREAD_HEAD
        """The last head and its batch handler, kept together with the two fields below."""
        self.admission: object = None
        self.batch_handler: BatchHandler | None = None
        self.lead = b""
        """Everything before the body of the last found request."""
        self.nbytes = -1
        """The total length of that request. One of the same length with the same beginning needs no `find`."""

    def find(self, data: bytes, nbytes: int) -> bytes:
        """Returns the body if this is a whole request with a known head, which becomes the last head; otherwise the
        data."""
        if self._last_cut and nbytes > self.cut_bytes and data.startswith(self._last_cut):
            # It begins with a request with a shorter length: there are several.
            return data
        for known in self._known:
            lead = known.front
            if known.back:
                rest = nbytes - known.head_nbytes
                if not 0 < rest <= self._rest_bytes_max:
                    continue
                digits = _READY[rest] if rest < _READY_BYTES else _length_of(rest)
                if not digits:
                    continue
                lead = lead + digits + known.back
            elif nbytes != known.head_nbytes:
                continue
            body = data.removeprefix(lead)
            # Without the lead it is the same object.
            if body is not data:
                if known is not self._last:
                    self._turn_to(known)
                self._fruitless = 0
                self.lead, self.nbytes = lead, nbytes
                return body
        return data

    def cut(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Returns the start and end of the body of the request at this position, if its head is known and it is
        complete; the head becomes the last one. Other requests may follow, so the length field is parsed here."""
        if self._last_cut and data.startswith(self._last_cut, at):
            begin = at + len(self._last_cut)
            end = begin + self._last_length
            return (begin, end) if end <= len(data) else None
        for known in self._known:
            front, back = known.front, known.back
            if not data.startswith(front, at):
                continue
            begin, length = at + len(front), 0
            if back:
                end = data.find(b"\r", begin, begin + _DIGITS_MAX + 1)
                number = data[begin : max(end, begin)]
                if not number.isdigit() or number.startswith(b"0") or not data.startswith(back, end):
                    continue
                begin, length = end + len(back), int(number)
            if length > self._body_bytes_max or begin + length > len(data):
                return None
            self._turn_to(known)
            self._fruitless = 0
            # `lead` belongs to another request.
            self.nbytes = -1
            self._last_cut, self._last_length = data[at:begin], length
            return begin, begin + length
        return None

    def cut_run(self, data: bytes, most: int) -> list[bytes]:
        """Returns the bodies of the requests at the start of a piece, at most `most`, while each is complete and has
        the head of the last extracted one."""
        lead, bodies, at = self._last_cut, [], 0
        head_nbytes = len(lead)
        nbytes = head_nbytes + self._last_length
        # The latest possible start of the last one.
        last = min(len(data), most * nbytes) - nbytes if lead else -1
        while at <= last and data.startswith(lead, at):
            bodies.append(data[at + head_nbytes : at + nbytes])
            at += nbytes
        return bodies

    @property
    def cut_bytes(self) -> int:
        """The length of the last extracted request."""
        return len(self._last_cut) + self._last_length

    def _turn_to(self, known: Known) -> None:
        self._last_cut = b""
        self._last = known
        self.head, self.admission, self.batch_handler = known.head, known.admission, known.batch_handler

    def are_admitted(self, application: Application) -> bool:
        """Checks the last head with the application, and caches an admission while it is valid."""
        # A copy with the same content is checked: requests in progress keep this one, with its earlier result.
        admission, head = application.admission, copy(self.head)
        try:
            verdict = application.admit(head)
        except Exception:
            return False
        if not isinstance(verdict, int) or verdict < self._body_bytes_max:
            return False
        assert self._last is not None
        if head.context is not self.head.context:
            self.head = self._last.head = head
        lasting = not isinstance(verdict, OneRequest)
        self.admission = self._last.admission = admission if lasting else None
        self.batch_handler = self._last.batch_handler = application.batch_handler(self.head) if lasting else None
        return True

    def remember(self, candidate: bytes, head: RequestHead, length: int | None, limit: int) -> None:
        """Caches a head that was admitted with this body limit, unless requests with it must be parsed each time."""
        if self._fruitless >= _FRUITLESS_MAX or length is None or len(candidate) > _HEAD_BYTES_MAX:
            return
        if limit < self._body_bytes_max:
            return
        first = head.headers.first
        for name in _SPECIAL:
            if name in first:
                return
        # A head with a body and one without are admitted separately, because the application checks differ.
        parts = _split(candidate) if length else (candidate + HEAD_END, b"")
        if parts is None:
            return
        self._fruitless += 1
        if len(self._known) >= _KNOWN_MAX or self._fruitless == _FRUITLESS_MAX:
            self._known.clear()
        if self._fruitless == _FRUITLESS_MAX:
            return
        rest = Headers({name: value for name, value in first.items() if name != _LENGTH}, head.headers.repeated)
        self._known.append(Known(replace(head, headers=rest), *parts))

    def close(self) -> None:
        """Disables the cache: every later request is parsed."""
        self._known.clear()
        self._last_cut = b""
        self._fruitless = _FRUITLESS_MAX
        self.nbytes = -1

    def __len__(self) -> int:
        return len(self._known)


def _length_of(rest: int) -> bytes:
    """Returns the length field that, with the body that it announces, has this many bytes; empty if there is none."""
    length = rest - len(str(rest))
    if length + len(str(length)) != rest:
        # It has a digit less than both together: 9 and 1 are 10.
        length += 1
    return b"%d" % length if length > 0 and length + len(str(length)) == rest else b""


_READY = [_length_of(rest) for rest in range(_READY_BYTES)]


def _split(candidate: bytes) -> tuple[bytes, bytes] | None:
    """Returns the text before and after the content length; None if its position is ambiguous."""
    name = b"\r\n" + _LENGTH + b":"
    small = candidate.lower()
    begin = small.find(name) + len(name)
    if small.count(_LENGTH) != 1 or begin < len(name):
        return None
    while candidate[begin : begin + 1] == b" ":
        begin += 1
    end = candidate.find(b"\r", begin)
    end = len(candidate) if end < 0 else end
    return (candidate[:begin], candidate[end:] + HEAD_END) if candidate[begin:end].isdigit() else None


class RequestFramer(HeadCache):
    """The heads that a connection has sent, and the parser's position in its bytes.

    The parser is between two requests if `since_bytes` and `due_bytes` are equal.
    """

    __slots__ = ("due_bytes", "fresh", "since_bytes")

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__(body_bytes_max)
        self.fresh: bytes | None = None
        """The bytes received between two requests, while heads in them may be added to the cache."""
        self.since_bytes = 0
        """The number of bytes received since then."""
        self.due_bytes = 0
        """The number of these bytes that belong to requests whose heads were read; -1 if unknown."""

    def begin(self, fresh: bytes, came: int = 0) -> None:
        """Starts between two requests with the next piece; `size` bytes of it count as received."""
        self.fresh, self.since_bytes, self.due_bytes = fresh, came, 0

    def left_of_request(self, unparsed: int) -> int:
        """Returns the remaining bytes of the current request, given the number of received bytes not passed to the
        parser yet; 0 between two requests, and negative if unknown."""
        return self.due_bytes - (self.since_bytes - unparsed)

    def candidate(self, head: RequestHead, length: int | None) -> bytes | None:
        """Caches the head that was just read, if its start and end are certain, and notes the start of the next
        request."""
        fresh, begin = self.fresh, self.due_bytes
        if fresh is None:
            return None
        end = fresh.find(HEAD_END, begin)
        # A client may send empty lines first, which the parser skips.
        begins = fresh.startswith(b"%b %b " % (head.method.encode("latin-1"), head.target), begin)
        if length is None or end < 0 or not begins:
            self.fresh, self.due_bytes = None, -1
            return None
        self.due_bytes = end + len(HEAD_END) + length
        if self.due_bytes >= len(fresh):
            self.fresh = None
        return fresh[begin:end]
