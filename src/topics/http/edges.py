"""Where requests begin and end in what one connection sends.

A head can be made known (`http.head_cache`) only if it is certain which bytes it is, and a known one can be started
without the parser only where the parser stands between two requests. Both are counted here: the bytes that came since
it last stood there for certain, and how many of them belong to requests whose heads it has read since.
"""

from topics.http.head_cache import HEAD_END, HeadCache
from topics.http.messages import RequestHead


class RequestEdges(HeadCache):
    """The heads that one connection has sent, and where in its bytes the parser is.

    It stands between two requests where `since_bytes` and `due_bytes` are equal.
    """

    __slots__ = ("due_bytes", "fresh", "since_bytes")

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__(body_bytes_max)
        self.fresh: bytes | None = None
        """What came when it stood between two requests, while heads in it may become known."""
        self.since_bytes = 0
        """How many bytes came since then."""
        self.due_bytes = 0
        """How many of them the requests have whose heads were read; -1 when nobody can tell any more."""

    def begin(self, fresh: bytes, came: int = 0) -> None:
        """It stands between two requests, and this is what comes next; so much of it counts as come."""
        self.fresh, self.since_bytes, self.due_bytes = fresh, came, 0

    def left_of_request(self, unparsed: int) -> int:
        """How much is left of the request that the parser is in, if so much that came was not given to it yet; nothing
        between two of them, and less than nothing where nobody can tell."""
        return self.due_bytes - (self.since_bytes - unparsed)

    def candidate(self, head: RequestHead, length: int | None) -> bytes | None:
        """The head that was just read, if it is certain where it begins and ends; and where the next request begins."""
        fresh, begin = self.fresh, self.due_bytes
        if fresh is None:
            return None
        end = fresh.find(HEAD_END, begin)
        # A client may send empty lines first, which the parser passes over.
        begins = fresh.startswith(b"%b %b " % (head.method.encode("latin-1"), head.target), begin)
        if length is None or end < 0 or not begins:
            self.fresh, self.due_bytes = None, -1
            return None
        self.due_bytes = end + len(HEAD_END) + length
        if self.due_bytes >= len(fresh):
            self.fresh = None
        return fresh[begin:end]
