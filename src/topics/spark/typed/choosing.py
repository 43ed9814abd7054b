"""Which typed files are shown: decided from the archive's state and from what is there. Nothing here writes.

What is shown is of one generation, so of one version of the schema. While files of another are made, the old ones stay,
and so do those whose file of the archive was rewritten before its twin was made. Such a twin is shown through the files
that took the place of its own: a row that they no longer have, or hide, is hidden. So whatever is shown is shown once,
and nothing that is deleted is, at any moment.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from topics.spark.archive.files import DataFile, Run
from topics.spark.archive.masks import Ints, Mask
from topics.spark.archive.state import ArchiveState
from topics.spark.table.files import Wanted
from topics.spark.table.ranged import read_column
from topics.spark.typed.twins import generation_of, twin_of
from topics.storage.fs import FileSystem

Twins = Mapping[str, DataFile]
"""Typed files by their paths below the table's folder, each with the runs that it has."""


class Choice(NamedTuple):
    wanted: dict[str, Wanted]
    lacking: list[DataFile]
    """Files of the archive whose twin has yet to be made."""
    coming: frozenset[str] = frozenset()
    """The twins of all files as the generation that holds now has them, made or not."""
    current: bool = True
    """Whether what is shown is of that generation."""
    generation: str = ""


class Chooser:
    """`root` is the archive's, `folder` the table's."""

    def __init__(self, fs: FileSystem, root: str, folder: str, state: ArchiveState, topic_id: int) -> None:
        self._fs = fs
        self._root = root
        self._folder = folder
        self._state = state
        self._topic_id = topic_id

    def choose(self, generation: str, made: Mapping[str, int], shown: Twins) -> Choice:
        """`made` are all files that are there, with their lengths."""
        known = self._topic_id in self._state.topics
        files = self._state.files_of(self._topic_id) if known else []
        lacking = [file for file in files if twin_of(file.path, generation) not in made]
        current = not lacking or all(generation_of(path) == generation for path in shown)
        ready: dict[str, DataFile] = {}
        missing = []
        for file in files:
            twin = twin_of(file.path, generation) if current else self._shown_twin(file, shown)
            if twin in made:
                ready[twin] = file
            else:
                missing.append(file)
        wanted = {twin: self._whole(twin, file, made[twin]) for twin, file in ready.items()}
        wanted |= {path: self._kept(path, old, missing) for path, old in shown.items() if path not in ready}
        coming = frozenset(twin_of(file.path, generation) for file in files)
        return Choice(wanted, lacking, coming, current, generation)

    def _shown_twin(self, file: DataFile, shown: Twins) -> str:
        generations = {generation_of(path) for path in shown}
        return next((twin for twin in (twin_of(file.path, one) for one in generations) if twin in shown), "")

    def _runs(self, file: DataFile) -> list[tuple[int, Run]]:
        return self._state.runs_in(file.path, self._topic_id)

    def _whole(self, twin: str, file: DataFile, size: int) -> Wanted:
        runs = tuple(run for _, run in self._runs(file))
        hidden = tuple(self._state.hidden_in(run) for run in runs)
        shown = DataFile(twin, file.day, file.bucket, size, runs)
        return Wanted(self._path(twin), shown, hidden if any(map(len, hidden)) else (), "_seq")

    def _kept(self, path: str, old: DataFile, missing: list[DataFile]) -> Wanted:
        """A twin whose own file no longer counts, as those files show it that have no twin yet."""
        run = as_one(old.runs)
        seqs = self._seqs(self._path(path), "_seq", 0, run)
        visible = [self._visible(file, run) for file in missing]
        gone = seqs[~np.isin(seqs, np.concatenate([np.empty(0, np.int64), *visible]))]
        file = DataFile(path, old.day, old.bucket, old.bytes, (run,))
        return Wanted(self._path(path), file, (_mask_of(gone),) if len(gone) else (), "_seq")

    def _visible(self, file: DataFile, within: Run) -> Ints:
        found = [np.empty(0, np.int64)]
        for row, run in self._runs(file):
            if run.first_seq <= within.last_seq and within.first_seq <= run.last_seq:
                seqs = self._seqs(f"{self._root}/{file.path}", "seq", row, run)
                found.append(seqs[~self._state.hidden_in(run).hides(seqs)])
        return np.concatenate(found)

    def _seqs(self, path: str, column: str, row: int, run: Run) -> Ints:
        if run.rows == run.last_seq - run.first_seq + 1:
            return np.arange(run.first_seq, run.last_seq + 1)
        seqs: Ints = read_column(self._fs, path, column).to_numpy()[row : row + run.rows]
        return seqs

    def _path(self, twin: str) -> str:
        return f"{self._folder}/{twin}"


def as_one(runs: tuple[Run, ...]) -> Run:
    """Runs of one topic that stand one after the other, as one with gaps."""
    first, last = runs[0], runs[-1]
    return Run(
        first.topic_id, first.epoch, first.topic, first.first_seq, last.last_seq, sum(run.rows for run in runs),
        first.first_ts, last.last_ts,
    )  # fmt: skip


def _mask_of(seqs: Ints) -> Mask:
    begins = np.flatnonzero(np.diff(seqs, prepend=seqs[0] - 2) > 1)
    ends = np.append(begins[1:] - 1, len(seqs) - 1)
    return Mask(seqs[begins], seqs[ends])
