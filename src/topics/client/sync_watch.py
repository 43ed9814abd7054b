"""The watcher for code that waits."""

from typing import TYPE_CHECKING

from topics.client.events import LiveItem
from topics.client.sync_stream import StreamLoop
from topics.client.watching import Watching

if TYPE_CHECKING:
    from topics.client.sync import Client


class Watcher(StreamLoop[LiveItem]):
    """A `for` loop over topics that waits for more. `close` or leaving its `with` block ends it and its connection."""

    def __init__(self, client: "Client", state: Watching) -> None:
        super().__init__(client, state)
        self._inbox = state.inbox

    @property
    def cursors(self) -> dict[str, int]:
        """How far the loop got in each topic: what another watcher takes as `topics` to go on behind the last item."""
        return dict(self._inbox.cursors)
