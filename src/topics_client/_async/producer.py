"""Idempotent producer of a stream: it numbers its appends, so that a retry cannot append twice."""

from datetime import datetime
from typing import TYPE_CHECKING

from topics_client._async.net import Lock
from topics_client.errors import ClientError
from topics_client.requests import Request
from topics_client.streams.contents import Entries, ProducerMark, StreamAppended, append_stream, close_stream

if TYPE_CHECKING:
    from topics_client._async.client import AsyncClient

_ID_BYTES = 12


class AsyncProducer:
    """Appends to one stream, one request after the other. Made by the `producer` of a client.

    If a request fails permanently with an unknown outcome, the next one begins a new epoch. The failed request is then
    refused if it arrives late, and its number cannot be confused with another request's.
    """

    def __init__(self, client: "AsyncClient", name: str, id: str | None, epoch: int) -> None:
        self.id = id or f"producer-{client._session.entropy.token(_ID_BYTES).hex()}"
        self.epoch = epoch
        self.seq = 0
        """The number of the next request."""
        self._client = client
        self._name = name
        self._lock = Lock()

    async def append(
        self, entries: Entries, *, content_type: str | None = None, key: str | None = None,
        ts: datetime | str | None = None, close: bool = False,
    ) -> StreamAppended:  # fmt: skip
        """Appends entries in this order, atomically, and exactly once even if the connection breaks."""
        async with self._lock:
            request = append_stream(
                self._name, entries, content_type=content_type, key=key, ts=ts, close=close, producer=self._mark
            )
            return await self._send(request)

    async def close_stream(self) -> StreamAppended:
        """Closes the stream behind everything that was appended."""
        async with self._lock:
            return await self._send(close_stream(self._name, producer=self._mark))

    @property
    def _mark(self) -> ProducerMark:
        return ProducerMark(self.id, self.epoch, self.seq)

    async def _send(self, request: Request[StreamAppended]) -> StreamAppended:
        try:
            answer = await self._client.send(request)
        except BaseException as error:
            if not isinstance(error, ClientError) or error.maybe_done:
                self.epoch, self.seq = self.epoch + 1, 0
            raise
        self.seq += 1
        return answer
