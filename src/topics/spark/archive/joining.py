"""Runs of a topic that meet in one file become one run, as far as nothing of the topic between them is elsewhere."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from topics.spark.archive.files import DataFile, Run
from topics.spark.archive.state import ArchiveState


def joined(file: DataFile, replaced: Iterable[str], state: ArchiveState) -> DataFile:
    """A file that takes the place of others, with as few runs as can be."""
    gone = set(replaced)
    runs: list[Run] = []
    for run in file.runs:
        if runs and runs[-1].topic_id == run.topic_id and not _between(runs[-1], run, gone, state):
            runs[-1] = _both(runs[-1], run)
        else:
            runs.append(run)
    return msgspec.structs.replace(file, runs=tuple(runs))


def _between(before: Run, after: Run, gone: set[str], state: ArchiveState) -> bool:
    """Whether another file that counts has seqs of the topic between two runs."""
    if before.last_seq + 1 == after.first_seq:
        return False
    others = sorted(_firsts(before.topic_id, gone, state))
    place = bisect_left(others, before.last_seq)
    return place < len(others) and others[place] < after.first_seq


def _firsts(topic_id: int, gone: set[str], state: ArchiveState) -> Sequence[int]:
    return [
        run.first_seq
        for path in state.by_topic.get(topic_id, ())
        if path not in gone
        for _, run in state.runs_in(path, topic_id)
    ]


def _both(before: Run, after: Run) -> Run:
    return msgspec.structs.replace(
        before,
        last_seq=after.last_seq,
        rows=before.rows + after.rows,
        last_ts=max(before.last_ts, after.last_ts),
        first_ts=min(before.first_ts, after.first_ts),
    )
