"""What the pipeline tells the engine: up to which catalog every product has applied the deletes.

The engine keeps a delete of sealed records until it is confirmed, and forgets it then.
"""

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

    def confirm(self, number: int) -> None:
        if number > self._confirmed():
            self._fs.make_dirs(self._layout.pipeline)
            replace_file(self._fs, self._layout.pipeline_seen, b"%d" % number)
            self._seen = number

    def _confirmed(self) -> int:
        if self._seen is None:
            data = read_whole(self._fs, self._layout.pipeline_seen) or b""
            self._seen = int(data) if data.isdigit() else 0
        return self._seen
