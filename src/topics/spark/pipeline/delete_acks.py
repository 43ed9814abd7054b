"""Delete acknowledgements: the catalog number up to which every product of the pipeline has applied deletes.

The engine keeps a delete of sealed records until it is acknowledged, and forgets it then. `LogHistory` identifies the
log that the products were built from.
"""

from collections.abc import Callable

from topics.log.fs import FileSystem, read_small, read_whole, replace_file, write_small
from topics.log.layout import RESTORED, Layout
from topics.spark.segment_reader import History
from topics.system.entropy import Entropy


class DeleteAcks:
    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._seen: int | None = None

    def is_ahead_of(self, number: int) -> bool:
        """Whether a catalog is older than the last acknowledgement: the folder was restored from a copy."""
        return number < self._acked()

    def restart(self, number: int) -> None:
        """Withdraws the acknowledgements of later catalogs."""
        if self.is_ahead_of(number):
            replace_file(self._fs, self._layout.pipeline_seen, b"%d" % number)
            self._seen = number

    def begin(self) -> None:
        """Writes the first acknowledgement, number 0. Every server that starts from now on keeps deletes."""
        if not self._fs.exists(self._layout.pipeline_seen):
            self._fs.make_dirs(self._layout.pipeline)
            replace_file(self._fs, self._layout.pipeline_seen, b"0")

    def ack(self, number: int, newest: Callable[[], int]) -> None:
        """Acknowledges deletes up to a catalog. The number of the `newest` catalog with a delete is saved first, before
        the engine forgets it."""
        if number > self._acked():
            self._fs.make_dirs(self._layout.pipeline)
            deleted_at = newest()
            if deleted_at > self.newest_acked_delete():
                replace_file(self._fs, self._layout.pipeline_told, b"%d" % deleted_at)
            replace_file(self._fs, self._layout.pipeline_seen, b"%d" % number)
            self._seen = number

    def newest_acked_delete(self) -> int:
        """The newest catalog whose deletes were acknowledged."""
        return self._number(self._layout.pipeline_told)

    def _acked(self) -> int:
        if self._seen is None:
            self._seen = self._number(self._layout.pipeline_seen)
        return self._seen

    def _number(self, path: str) -> int:
        data = read_whole(self._fs, path) or b""
        return int(data) if data.isdigit() else 0


# Log history: the small file `pipeline/history` of a data folder names the log that products are built from.
#
#     <16 hex digits>             the name of this folder's history, which the archive stores as well
#     restored                    the folder was restored from a backup, and may take over earlier products
#     <16 hex digits> restored    the takeover under this name has begun
#
# A folder that was put back to an older state, by a restore or from a copy, diverges from the log that an archive
# outside of it was built from. Continuing such an archive would show records that the log does not have, and treat new
# records as archived already. So the archive is rebuilt under a new history name. The folder stores the name before
# the archive does, so a crash in between changes nothing.


class LogHistory:
    def __init__(self, fs: FileSystem, layout: Layout, delete_acks: DeleteAcks, entropy: Entropy) -> None:
        self._fs = fs
        self._layout = layout
        self._delete_acks = delete_acks
        self._entropy = entropy

    def current(self, number: int) -> History:
        """The history of the log whose catalog has this number."""
        name, _, word = read_small(self._fs, self._layout.pipeline_history).strip().partition(" ")
        if name == RESTORED or (self._delete_acks.is_ahead_of(number) and word != RESTORED):
            name, word = "", RESTORED
        if not name:
            name = self._entropy.token(8).hex()
            self._write(f"{name} {word}".strip())
        return History(name, word == RESTORED, self._delete_acks.newest_acked_delete())

    def finish_takeover(self, history: History, number: int) -> None:
        """Ends a takeover once every product has reconciled with the history."""
        if history.takes_over:
            self._delete_acks.restart(number)
            self._write(history.name)

    def _write(self, text: str) -> None:
        self._fs.make_dirs(self._layout.pipeline)
        write_small(self._fs, self._layout.pipeline_history, text, self._layout.pipeline)
