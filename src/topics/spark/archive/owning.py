"""An archive is that of one log, and does not go on with another one's records."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from topics.formats.catalog import CatalogTopic
from topics.spark.archive.events import UNHEARD, Dropped, Event, Owned
from topics.spark.archive.masks import Mask
from topics.spark.archive.planning import newest_delete
from topics.spark.archive.state import ArchiveState
from topics.spark.history import History

_log = logging.getLogger(__name__)


class OtherHistoryError(Exception):
    """The archive is of another log, and nobody said that this one takes it over; or it must not, as records would go
    that are nowhere else."""


class MissedDeletesError(Exception):
    """The archive was left for another one, and deletes since then are forgotten."""


def heard(state: ArchiveState, changed: Iterable[CatalogTopic]) -> Sequence[Event]:
    """What notes that all deletes are taken over that a catalog tells of; nothing where it tells of none."""
    newest = newest_delete(changed)
    return [Owned(state.history, newest)] if newest > state.heard else ()


def owned(state: ArchiveState, history: History, topics: Mapping[int, CatalogTopic]) -> Sequence[Event]:
    """What makes an archive that of a log. One that another log left is begun anew: with all of its topics all of its
    files go, so that none is left to hold a record twice.
    """
    if state.history == history.name:
        if state.heard == UNHEARD:
            return [Owned(history.name, history.told)]
        if state.topics and state.heard < history.told:
            raise MissedDeletesError(
                f"deletes were confirmed for another archive, up to catalog {history.told}, and this one has heard of "
                f"those up to {state.heard}: it would show what was deleted. Move it away, and a new one is begun"
            )
        return ()
    if not state.topics or not (state.history or history.takes_over):
        return [Owned(history.name, history.told)]
    if not history.takes_over:
        raise OtherHistoryError(
            f"the archive is of the log {state.history}, and this data folder is another "
            "one: give it an archive of its own with archive_dir"
        )
    for topic_id, topic in topics.items():
        only = _only_here(state, topic_id, topic.earliest)
        if only:
            raise OtherHistoryError(
                f"the data folder went back to an older state, and the archive has {only} record(s) of {topic.name} "
                "that the log no longer has: move the archive away to keep them, and a new one is begun"
            )
    _log.warning("the archive is begun anew: the log has another history", extra={"topics": len(state.topics)})
    return [Dropped(sorted(state.topics)), Owned(history.name, history.told)]


def _only_here(state: ArchiveState, topic_id: int, earliest: int) -> int:
    """How many records are shown that lie before the first one of the log."""
    known = state.topics.get(topic_id)
    if known is None or earliest <= 1:
        return 0
    shown = Mask.of(state.spans_of(topic_id)).minus(known.deleted)
    return shown.intersection(Mask.of([(1, earliest - 1)])).count()
