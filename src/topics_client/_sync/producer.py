# Generated from topics_client._async by tools/sync_client.py; change the source instead.
"""A producer of a stream: it numbers what it appends, so that sending it again cannot append it twice."""

from datetime import datetime
from typing import TYPE_CHECKING

from topics_client._sync.net import Lock
from topics_client.errors import ClientError
from topics_client.requests import Request
from topics_client.streams.contents import Entries, ProducerMark, StreamAppended, append_stream, close_stream

if TYPE_CHECKING:
    from topics_client._sync.client import Client

_ID_BYTES = 12


class Producer:
    """Appends to one stream, one request after the other. Made by the `producer` of a client.

    When a request fails for good and nobody knows whether it was carried out, the next one begins a new epoch. After
    that the old one cannot come in any more, and its number is not taken for that of something else.
    """

    def __init__(self, client: "Client", name: str, id: str | None, epoch: int) -> None:
        self.id = id or f"producer-{client._session.entropy.token(_ID_BYTES).hex()}"
        self.epoch = epoch
        self.seq = 0
        """The number of the next request."""
        self._client = client
        self._name = name
        self._lock = Lock()

    def append(
        self, entries: Entries, *, content_type: str | None = None, key: str | None = None,
        ts: datetime | str | None = None, close: bool = False,
    ) -> StreamAppended:  # fmt: skip
        """Appends entries in this order, all or none, and once whatever becomes of the connection."""
        with self._lock:
            request = append_stream(
                self._name, entries, content_type=content_type, key=key, ts=ts, close=close, producer=self._mark
            )
            return self._send(request)

    def close_stream(self) -> StreamAppended:
        """Closes the stream behind everything that was appended."""
        with self._lock:
            return self._send(close_stream(self._name, producer=self._mark))

    @property
    def _mark(self) -> ProducerMark:
        return ProducerMark(self.id, self.epoch, self.seq)

    def _send(self, request: Request[StreamAppended]) -> StreamAppended:
        try:
            answer = self._client.send(request)
        except BaseException as error:
            if not isinstance(error, ClientError) or error.maybe_done:
                self.epoch, self.seq = self.epoch + 1, 0
            raise
        self.seq += 1
        return answer
