"""Looks at the catalog round after round, and tells what is different from the time before."""

from collections.abc import Callable

from topics.formats.catalog import Catalog, Encoded, decode_since
from topics.spark.history import History
from topics.spark.pipeline.products import View
from topics.spark.segments import NoCatalogError
from topics.storage.catalog import read_catalog_bytes
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout


class Watcher:
    """A topic of ten thousand that did not change costs a look at its bytes, and no product hears of it."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._known: Encoded = {}

    def look(self, history_of: Callable[[int], History]) -> View:
        """Raises NoCatalogError where there is nothing to look at. `history_of` knows a log by its catalog's number."""
        data = read_catalog_bytes(self._fs, self._layout)
        if data is None:
            raise NoCatalogError(self._layout.root)
        head, topics = decode_since(data, self._known)
        changed = [topic for raw, topic in topics.items() if raw not in self._known]
        self._known = topics
        found = list(topics.values())
        by_id = {topic.topic_id: topic for topic in found}
        return View(Catalog(head, found), changed, by_id, history_of(head.number))

    def forget(self) -> None:
        """Whoever sat out a look must be told everything the next time."""
        self._known = {}
