"""What the pipeline tells the engine: up to which catalog every product has applied the deletes.

The engine keeps a delete of sealed records until it is confirmed, and forgets it then.
"""

from collections.abc import Callable

from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.replaced import read_whole, replace_file


class Confirmations:
    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._seen: int | None = None

    def is_ahead_of(self, number: int) -> bool:
        """Whether a catalog is from before the last confirmation: the folder was put back from a copy."""
        return number < self._confirmed()

    def restart(self, number: int) -> None:
        """Nothing behind this catalog counts as confirmed any more."""
        if self.is_ahead_of(number):
            replace_file(self._fs, self._layout.pipeline_seen, b"%d" % number)
            self._seen = number

    def begin(self) -> None:
        """Leaves word that there is something to confirm to, before there is: every server that starts from now on
        keeps deletes."""
        if not self._fs.exists(self._layout.pipeline_seen):
            self._fs.make_dirs(self._layout.pipeline)
            replace_file(self._fs, self._layout.pipeline_seen, b"0")

    def confirm(self, number: int, newest: Callable[[], int]) -> None:
        """Everything up to a catalog is applied; the `newest` that told of a delete is noted before the engine forgets
        it."""
        if number > self._confirmed():
            self._fs.make_dirs(self._layout.pipeline)
            told = newest()
            if told > self.told():
                replace_file(self._fs, self._layout.pipeline_told, b"%d" % told)
            replace_file(self._fs, self._layout.pipeline_seen, b"%d" % number)
            self._seen = number

    def told(self) -> int:
        """The newest catalog of which deletes were confirmed."""
        return self._number(self._layout.pipeline_told)

    def _confirmed(self) -> int:
        if self._seen is None:
            self._seen = self._number(self._layout.pipeline_seen)
        return self._seen

    def _number(self, path: str) -> int:
        data = read_whole(self._fs, path) or b""
        return int(data) if data.isdigit() else 0
