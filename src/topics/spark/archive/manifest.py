"""The manifest of a topic's archive: which files count, which seqs they cover, which of those are deleted.

    version       1, or 2 with `packed`
    topic_id, epoch, topic
    number        counts up by one with every change
    updated_ms    when that was
    catalog       the last catalog of the engine whose deletes have been taken over
    files         each with its path below the topic's folder, date, first and last seq, rows, bytes, first and last ts
    covered       ranges of seqs that were archived: nothing in them is ever read from the log again
    deleted       ranges of seqs that must not be shown, though files may still hold them
    packed        more than `PLAIN_MAX` of them, as one word: base64 of zlib of the mask's numbers, each as the distance
                  from the one before
    hidden_ms     since when the oldest of them is hidden; it must be out of the files by a deadline
    retired       files that no longer count, each with the time since when; they are removed a while later

A file counts when the manifest names it, and the manifest is replaced in one step after the files it names are on
disk. So a run that is killed leaves the previous manifest valid and at most some files that nobody names; and a run
that is repeated finds its seqs covered and does nothing. Every function here returns a new manifest.
"""

from collections.abc import Iterable, Sequence

import msgspec

from topics.core.ranges import Ranges, SeqRange, difference, intersection, union
from topics.spark.archive.masks import Mask

VERSION = 1
PACKED_VERSION = 2
PLAIN_MAX = 1000
"""Ranges by the million take a second to read as JSON, and are written whole with every change."""


class ArchivedFile(msgspec.Struct, frozen=True):
    path: str
    date: str
    first_seq: int
    last_seq: int
    rows: int
    bytes: int
    first_ts: int
    last_ts: int


class RetiredFile(msgspec.Struct, frozen=True):
    path: str
    since_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    topic_id: int
    epoch: int
    topic: str
    number: int = 0
    updated_ms: int = 0
    catalog: int = 0
    files: tuple[ArchivedFile, ...] = ()
    covered: tuple[SeqRange, ...] = ()
    deleted: tuple[SeqRange, ...] = ()
    hidden_ms: int = 0
    retired: tuple[RetiredFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def named(self) -> set[str]:
        """Every path that may still be read or has yet to be removed by its time."""
        return {file.path for file in self.files} | {file.path for file in self.retired}


class _Written(Manifest, frozen=True, kw_only=True):
    packed: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    fields = {**msgspec.structs.asdict(manifest), "version": VERSION}
    if len(manifest.deleted) > PLAIN_MAX:
        # Whoever does not know the word would show what is deleted, so it has a version of its own.
        fields |= {"version": PACKED_VERSION, "deleted": (), "packed": Mask.of(manifest.deleted).to_text()}
    return msgspec.json.format(msgspec.json.encode(_Written(**fields)), indent=1)


def decode_manifest(data: bytes) -> Manifest:
    """Raises ValueError for anything that is no manifest of a version we know."""
    manifest, mask = decode_masked(data)
    return msgspec.structs.replace(manifest, deleted=tuple(mask.ranges()))


def decode_masked(data: bytes) -> tuple[Manifest, Mask]:
    """A manifest without its deletes, and those: for readers, who look them up and never list them."""
    found = msgspec.json.decode(data, type=_Written)
    if found.version not in (VERSION, PACKED_VERSION):
        raise ValueError(f"a manifest of version {found.version}, which this program does not know")
    mask = Mask.from_text(found.packed) if found.packed else Mask.of(found.deleted)
    fields = msgspec.structs.asdict(found)
    del fields["packed"]
    return Manifest(**{**fields, "version": VERSION, "deleted": ()}), mask


def with_files(manifest: Manifest, files: Iterable[ArchivedFile], covered: Iterable[SeqRange], now_ms: int) -> Manifest:
    """Archived records join. Raises ValueError when any of them were archived before: that would show them twice."""
    fresh = union(covered)
    if intersection(fresh, manifest.covered):
        raise ValueError(f"topic {manifest.topic}: records {fresh} are archived already")
    joined = _joined(manifest, manifest.files, files)
    return _changed(manifest, now_ms, files=tuple(joined), covered=tuple(union(manifest.covered, fresh)))


def masked(manifest: Manifest, ranges: Sequence[SeqRange], catalog: int, now_ms: int) -> Manifest:
    """Deleted records are hidden from now on; the same manifest when they were not archived or are hidden already.

    The catalog that told of them is noted, because it goes on telling for a while, and what a rewrite has taken out of
    the files need not be hidden again.
    """
    fresh = difference(intersection(manifest.covered, union(ranges)), manifest.deleted)
    if not fresh:
        return manifest
    hidden = tuple(union(manifest.deleted, fresh))
    return _changed(manifest, now_ms, deleted=hidden, hidden_ms=hidden_since(manifest) or now_ms, catalog=catalog)


def rewritten(
    manifest: Manifest, old: Sequence[str], new: Iterable[ArchivedFile], applied: Sequence[SeqRange], now_ms: int
) -> Manifest:
    """Some files are replaced by others that hold the same records less those of `applied`.

    The applied deletes need not be remembered any longer: no two files ever span the same seqs.
    """
    gone = set(old)
    missing = gone - {file.path for file in manifest.files}
    if missing:
        raise ValueError(f"topic {manifest.topic}: {', '.join(sorted(missing))} no longer count")
    kept = [file for file in manifest.files if file.path not in gone]
    files = _joined(manifest, kept, new)
    changed = _retire(manifest, gone, now_ms)
    left = _still_held(difference(manifest.deleted, applied), files)
    return _changed(changed, now_ms, files=tuple(files), deleted=tuple(left), hidden_ms=_since(manifest, left))


def expired(manifest: Manifest, before_ts: int, now_ms: int) -> Manifest:
    """Files whose newest record is older go; their seqs stay covered, so they do not come back."""
    old = {file.path for file in manifest.files if file.last_ts < before_ts}
    if not old:
        return manifest
    files = [file for file in manifest.files if file.path not in old]
    changed = _retire(manifest, old, now_ms)
    left = _still_held(manifest.deleted, files)
    return _changed(changed, now_ms, files=tuple(files), deleted=tuple(left), hidden_ms=_since(manifest, left))


def without_retired(manifest: Manifest, before_ms: int) -> tuple[Manifest, list[str]]:
    """The manifest without files that were retired before a moment, and their paths: remove them only after saving."""
    gone = [file.path for file in manifest.retired if file.since_ms <= before_ms]
    if not gone:
        return manifest, []
    kept = tuple(file for file in manifest.retired if file.since_ms > before_ms)
    return msgspec.structs.replace(manifest, retired=kept, number=manifest.number + 1), gone


def hidden_since(manifest: Manifest) -> int:
    """Since when the oldest delete is hidden that files still hold; 0 when they hold none."""
    # Written before that was noted: at the latest when it was last changed.
    return (manifest.hidden_ms or manifest.updated_ms) if manifest.deleted else 0


def _since(manifest: Manifest, left: Sequence[SeqRange]) -> int:
    """Of what is left nobody knows which is the oldest, so none of it gets more time than it had."""
    return hidden_since(manifest) if left else 0


def _joined(manifest: Manifest, kept: Iterable[ArchivedFile], new: Iterable[ArchivedFile]) -> list[ArchivedFile]:
    """The files in order. A new one must not have the name of one that is about to be removed."""
    fresh = list(new)
    reused = manifest.named() & {file.path for file in fresh}
    if reused:
        raise ValueError(f"topic {manifest.topic}: {', '.join(sorted(reused))} was written twice")
    return sorted([*kept, *fresh], key=lambda file: (file.first_seq, file.path))


def _still_held(deleted: Sequence[SeqRange], files: Sequence[ArchivedFile]) -> Ranges:
    """Deletes need to be remembered only for seqs that some file's range spans."""
    return intersection(deleted, union([(file.first_seq, file.last_seq) for file in files]))


def _retire(manifest: Manifest, paths: set[str], now_ms: int) -> Manifest:
    retired = (*manifest.retired, *(RetiredFile(path, now_ms) for path in sorted(paths)))
    return msgspec.structs.replace(manifest, retired=retired)


def _changed(manifest: Manifest, now_ms: int, **fields: object) -> Manifest:
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, **fields)
