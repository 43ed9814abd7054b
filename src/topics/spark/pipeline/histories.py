"""Which log the products of a pipeline are made of: the small file `pipeline/history` of a data folder.

    <16 hex digits>             the name of this folder's history, which the archive remembers as well
    restored                    the folder came whole out of a backup, and may take over what an earlier one left
    <16 hex digits> restored    it is about to, under this name

A folder that was put back to an older state, by a restore or from a copy, has another future than the one that an
archive outside of it knows. To go on with such an archive would show records that the log does not have, and take new
records for ones that are archived already. So it is begun anew, under another name of the history. The folder knows the
name before the archive does, so that a crash in between changes nothing.
"""

from topics.spark.history import History
from topics.spark.pipeline.confirming import Confirmations
from topics.storage.fs import FileSystem, read_small, write_small
from topics.storage.layout import RESTORED, Layout
from topics.system.dice import Dice


class Histories:
    def __init__(self, fs: FileSystem, layout: Layout, confirmations: Confirmations, dice: Dice) -> None:
        self._fs = fs
        self._layout = layout
        self._confirmations = confirmations
        self._dice = dice

    def look(self, number: int) -> History:
        """The history of the log whose catalog has this number."""
        name, _, word = read_small(self._fs, self._layout.pipeline_history).strip().partition(" ")
        if name == RESTORED or (self._confirmations.is_ahead_of(number) and word != RESTORED):
            name, word = "", RESTORED
        if not name:
            name = self._dice.token(8).hex()
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
