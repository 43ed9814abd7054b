"""The cold tier in an object store: the checks at a start, and the removal of leftover objects.

A store may be away for a while, and a server must start and serve without it. So nothing here takes an unanswered
question for an answer:

* A start asks only for what it needs and has no copy of: the indexes and the flags of cold segments. Whether each
  segment's data is still there shows when it is read, or by `topics verify`.
* A data folder that knows nothing yet does not start until the store has said that it holds nothing either. The new
  topics would get the numbers of those in the store, and their segments would be written over.
* What nobody names is removed while the server runs, once the store could be listed, and not by the start.
"""

import logging
from collections.abc import Iterator
from functools import partial

from topics.engine.background_jobs import Job, OffLoop
from topics.engine.core import EngineCore
from topics.log.damage import topic_id_of
from topics.log.fs import FileSystem
from topics.log.layout import number_in
from topics.log.object_store.store import StoreUnavailable
from topics.log.segment_files import SegmentDamaged, SegmentKey
from topics.model.errors import ColdStoreUnavailableError, Finding

_RETRY_MS = 30_000

_log = logging.getLogger(__name__)


def missing_near(core: EngineCore) -> list[Finding]:
    """Brings what the loop needs of every cold segment to the local disk; returns those that the store has lost.

    Raises ColdStoreUnavailableError when something is needed and cannot be asked for.
    """
    far, lost = core.store.far, []
    if far is None:
        return []
    for topic in core.topics.values():
        for segment in topic.segments:
            key = SegmentKey(topic.id, segment.first_seq, segment.cold)
            if not segment.cold or far.is_near(core.store.path(key)):
                continue
            try:
                core.store.bring_near(key, segment.count)
            except SegmentDamaged as damage:
                seqs = (segment.first_seq, segment.last_seq)
                lost.append(Finding(damage.path, damage.reason, seq_range=seqs, topic=topic.name))
    return lost


def topics_in_store(core: EngineCore, fs: FileSystem) -> list[str]:
    """The folders of topics in the store; none when it cannot be asked by a server that has topics of its own."""
    try:
        return [name for name in fs.list_dir(core.layout.topics(cold=True)) if topic_id_of(name) is not None]
    except FileNotFoundError:
        return []
    except StoreUnavailable as error:
        if core.next_topic_id == 1:
            raise ColdStoreUnavailableError(error.why) from error
        _log.warning("the object store does not answer; started without it", extra={"why": error.why})
        return []


class Sweeper:
    """Removes from the store what no topic names: what a crash left of moving and deleting. Done once a start."""

    def __init__(self, core: EngineCore, fs: FileSystem) -> None:
        self._core = core
        self._fs = fs
        self.due_at: int | None = 0 if core.store.far is not None else None
        """When it is to be done, in milliseconds; None when it was, or where there is nothing to do."""
        self.removed = 0

    def job(self) -> Job:
        """Lists on its thread, decides on the loop, removes on its thread.

        Nothing else that moves or removes segments runs meanwhile: all of it is done by the same runner.
        """
        core, root = self._core, self._core.layout.topics(cold=True)
        try:
            folders = yield OffLoop(partial(self._names, root))
            assert isinstance(folders, list)
            for folder in folders:
                names = yield OffLoop(partial(self._names, f"{root}/{folder}"))
                assert isinstance(names, list)
                paths = list(self._unwanted(folder, names))
                if paths:
                    yield OffLoop(partial(self._remove, paths))
                    self.removed += len(paths)
        except StoreUnavailable as error:
            self.due_at = core.steady() + _RETRY_MS
            _log.info("the object store could not be tidied up yet", extra={"why": error.why})
        if self.removed:
            _log.info("removed objects that no topic names", extra={"objects": self.removed})

    def _unwanted(self, folder: str, names: list[str]) -> Iterator[str]:
        core = self._core
        topic_id = topic_id_of(folder)
        if topic_id is None:
            return
        if topic_id >= core.next_topic_id:
            _log.error("the object store holds a topic that nobody created; it is left alone", extra={"folder": folder})
            return
        topic = core.topics.get(topic_id)
        # A snapshot may still name what is waiting to be removed.
        kept = {key.first_seq for key in core.trash if key.cold and key.topic_id == topic_id}
        kept |= {segment.first_seq for segment in topic.segments if segment.cold} if topic is not None else set()
        if topic is None and topic_id in {dropped for shard in core.dropped for dropped in shard}:
            return
        for name in names:
            first = number_in(name.rsplit(".", 1)[0], "seg-", "")
            if first is not None and first not in kept:
                yield f"{core.layout.topics(cold=True)}/{folder}/{name}"

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(folder)
        except FileNotFoundError:
            return []

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self._fs.remove(path)


def drop_stale_copies(core: EngineCore) -> None:
    """Removes the copies of segments that are not in the store any more, or that nobody names."""
    far = core.store.far
    if far is not None:
        named = {
            core.store.path(SegmentKey(topic.id, segment.first_seq, True)) + ending
            for topic in core.topics.values()
            for segment in topic.segments
            if segment.cold
            for ending in (".data", ".idx")
        }
        far.keep_only(named.__contains__)
