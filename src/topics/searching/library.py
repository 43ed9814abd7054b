"""The companions that are open in the searching process: mapped when first asked, the least used closed for others."""

from collections import OrderedDict
from collections.abc import Callable

from topics.indexing.companions.mapped import Companion

OPEN_MAX = 1024
"""A mapping takes no memory that the system could not have back, but it takes an entry in a table of them."""

MapFile = Callable[[str], memoryview]
"""All of a file, mapped. Raises OSError."""


class UnreadableError(Exception):
    """A companion is not there, or not what was written."""


class Library:
    def __init__(self, map_file: MapFile, open_max: int = OPEN_MAX) -> None:
        self._map_file = map_file
        self._open_max = open_max
        self._open: OrderedDict[str, Companion] = OrderedDict()

    def open(self, path: str) -> Companion:
        """Raises UnreadableError."""
        known = self._open.get(path)
        if known is None:
            try:
                known = Companion(self._map_file(path))
            except (OSError, ValueError) as error:
                # An empty file cannot be mapped, which is a ValueError like any damage.
                raise UnreadableError(str(error)) from error
            self._open[path] = known
            if len(self._open) > self._open_max:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return known

    def close(self, path: str) -> None:
        self._open.pop(path, None)
