"""The watcher for asyncio."""

from typing import TYPE_CHECKING

from topics.client.async_stream import AsyncStreamLoop
from topics.client.events import LiveItem
from topics.client.watching import Watching

if TYPE_CHECKING:
    from topics.client.asynchronous import AsyncClient


class AsyncWatcher(AsyncStreamLoop[LiveItem]):
    """An `async for` loop over topics that waits for more. `aclose`, leaving its `async with` block or cancelling the
    task ends it at once; only the first two close its connection.
    """

    def __init__(self, client: "AsyncClient", state: Watching) -> None:
        super().__init__(client, state)
        self._inbox = state.inbox

    @property
    def cursors(self) -> dict[str, int]:
        """How far the loop got in each topic: what another watcher takes as `topics` to go on behind the last item."""
        return dict(self._inbox.cursors)
