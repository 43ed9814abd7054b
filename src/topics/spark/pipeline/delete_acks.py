"""What the pipeline tells the engine: up to which catalog every product has applied the deletes.

The engine keeps a delete of sealed records until it is confirmed, and forgets it then.
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


# Which log the products of a pipeline are made of: the small file `pipeline/history` of a data folder.
#
#     <16 hex digits>             the name of this folder's history, which the archive remembers as well
#     restored                    the folder came whole out of a backup, and may take over what an earlier one left
#     <16 hex digits> restored    it is about to, under this name
#
# A folder that was put back to an older state, by a restore or from a copy, has another future than the one that an
# archive outside of it knows. To go on with such an archive would show records that the log does not have, and take new
# records for ones that are archived already. So it is begun anew, under another name of the history. The folder knows
# the name before the archive does, so that a crash in between changes nothing.


class Histories:
    def __init__(self, fs: FileSystem, layout: Layout, confirmations: DeleteAcks, entropy: Entropy) -> None:
        self._fs = fs
        self._layout = layout
        self._confirmations = confirmations
        self._entropy = entropy

    def look(self, number: int) -> History:
        """The history of the log whose catalog has this number."""
        name, _, word = read_small(self._fs, self._layout.pipeline_history).strip().partition(" ")
        if name == RESTORED or (self._confirmations.is_ahead_of(number) and word != RESTORED):
            name, word = "", RESTORED
        if not name:
            name = self._entropy.token(8).hex()
            self._note(f"{name} {word}".strip())
        return History(name, word == RESTORED, self._confirmations.told())

    def settle(self, history: History, number: int) -> None:
        """Every product has settled with it."""
        if history.takes_over:
            self._confirmations.restart(number)
            self._note(history.name)

    def _note(self, text: str) -> None:
        self._fs.make_dirs(self._layout.pipeline)
        write_small(self._fs, self._layout.pipeline_history, text, self._layout.pipeline)
