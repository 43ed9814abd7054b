"""Archives of before the ledger: a folder and a manifest for each topic. They are taken over once, as they are.

    topic_id=<16 hex digits>/manifest.json
    topic_id=<16 hex digits>/date=<YYYY-MM-DD>/<first seq>-<last seq>-<run>.parquet

A file of theirs has one topic and one day, so it is a data file like any other; only its path tells its age, and the
next merge takes it into a file of today. The ledger is written whole before any manifest goes, so a takeover that is
cut short is done again, or was done.
"""

import base64
from collections.abc import Iterator
from datetime import date

import msgspec

from topics.log.fs import FileSystem, read_whole
from topics.model.seq_ranges import SeqRange
from topics.spark.archive.archive_state import ArchivedTopic, ArchiveState
from topics.spark.archive.data_files import ArchiveFile, Run
from topics.spark.archive.delete_masks import Mask
from topics.spark.segment_reader import bucket_of

_FOLDER = "topic_id="
_MANIFEST = "manifest.json"
_VERSIONS = (1, 2)
_FIRST_DAY = date(1970, 1, 1)


class _File(msgspec.Struct, frozen=True):
    path: str
    date: str
    first_seq: int
    last_seq: int
    rows: int
    bytes: int
    first_ts: int
    last_ts: int


class _Retired(msgspec.Struct, frozen=True):
    path: str
    since_ms: int


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    topic_id: int
    epoch: int
    topic: str
    updated_ms: int = 0
    catalog: int = 0
    files: tuple[_File, ...] = ()
    covered: tuple[SeqRange, ...] = ()
    deleted: tuple[SeqRange, ...] = ()
    packed: str = ""
    hidden_ms: int = 0
    retired: tuple[_Retired, ...] = ()


def legacy_topics(fs: FileSystem, root: str) -> list[str]:
    """The folders of topics that an archive of before has."""
    try:
        return [name for name in fs.list_dir(root) if name.startswith(_FOLDER)]
    except FileNotFoundError:
        return []


def legacy_state(fs: FileSystem, root: str) -> ArchiveState:
    """The state of an archive of before; raises ValueError for a manifest that cannot be read."""
    state = ArchiveState()
    for folder in legacy_topics(fs, root):
        data = read_whole(fs, f"{root}/{folder}/{_MANIFEST}")
        if data is not None:
            try:
                _take_over(state, folder, _decoded(data))
            except ValueError as error:
                raise ValueError(f"{root}/{folder}/{_MANIFEST}: {error}") from error
    return state


def remove_manifests(fs: FileSystem, root: str) -> None:
    """Once the ledger is there. Until then they are what counts."""
    for folder in legacy_topics(fs, root):
        for name in (_MANIFEST, _MANIFEST + ".tmp"):
            try:
                fs.remove(f"{root}/{folder}/{name}")
            except FileNotFoundError:
                continue


def legacy_files(fs: FileSystem, root: str) -> Iterator[str]:
    """Every data file below the folders of topics, whether it counts or not."""
    for folder in legacy_topics(fs, root):
        for day in fs.list_dir(f"{root}/{folder}"):
            if day.startswith("date="):
                yield from (f"{folder}/{day}/{name}" for name in fs.list_dir(f"{root}/{folder}/{day}"))


def _decoded(data: bytes) -> _Manifest:
    manifest = msgspec.json.decode(data, type=_Manifest)
    if manifest.version not in _VERSIONS:
        raise ValueError(f"a manifest of version {manifest.version}, which this program does not know")
    return manifest


def _take_over(state: ArchiveState, folder: str, old: _Manifest) -> None:
    mask = Mask.unpacked(base64.b64decode(old.packed, validate=True)) if old.packed else Mask.of(old.deleted)
    state.topics[old.topic_id] = ArchivedTopic(old.topic_id, old.epoch, old.topic, old.covered, mask, old.catalog)
    for file in old.files:
        run = Run(
            old.topic_id, old.epoch, old.topic, file.first_seq, file.last_seq, file.rows, file.first_ts, file.last_ts
        )
        # Written before it was noted when something was hidden: at the latest when the manifest was last changed.
        hidden = (old.hidden_ms or old.updated_ms) if len(mask.within(file.first_seq, file.last_seq)) else 0
        day = (date.fromisoformat(file.date) - _FIRST_DAY).days
        path = f"{folder}/{file.path}"
        state.files[path] = ArchiveFile(path, day, bucket_of(old.topic), file.bytes, (run,), hidden)
        state.by_topic.setdefault(old.topic_id, set()).add(path)
    state.retired |= {f"{folder}/{one.path}": one.since_ms for one in old.retired}
