"""Companions follow their segments into the cold tier: which of them, and what their manifest says meanwhile.

A name of the cold tier is among the retired ones before a task writes under it, and until the file counts there. So
whatever a run leaves that was killed is removed in time, like any file that is retired, and nobody has to list a store.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from topics.formats.catalog import CatalogTopic
from topics.spark.families.erasing import within
from topics.storage.companions import CompanionFile, FamilyManifest, Retired


class Move(msgspec.Struct, frozen=True, tag="move"):
    """A file that is to be copied into the cold tier."""

    topic_id: int
    topic: str
    epoch: int
    generation: str
    file: CompanionFile

    @property
    def bytes(self) -> int:
        return self.file.bytes


class Moved(msgspec.Struct, frozen=True):
    name: str
    digest: int


def moves(manifest: FamilyManifest, topic: CatalogTopic, busy: Collection[str]) -> Iterator[Move]:
    """The files whose segments are all in the cold tier, without those that are about to be replaced."""
    for file in manifest.of(manifest.generation):
        if not file.cold and file.name not in busy and _is_relocated(file, topic):
            yield Move(manifest.topic_id, manifest.topic, manifest.epoch, manifest.generation, file)


def _is_relocated(file: CompanionFile, topic: CatalogTopic) -> bool:
    segments = list(within(topic, file.first, file.last))
    return bool(segments) and all(segment.cold for segment in segments)


def announced(manifest: FamilyManifest, names: Collection[str], now_ms: int) -> FamilyManifest:
    """A manifest that knows of files that may be in the cold tier soon."""
    others = tuple(one for one in manifest.retired if not (one.cold and one.name in names))
    retired = (*others, *(Retired(name, now_ms, cold=True) for name in names))
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, retired=retired)


def with_moved(manifest: FamilyManifest, moved: Sequence[Moved], now_ms: int) -> FamilyManifest:
    """A manifest by which files are in the cold tier. Those in the data folder stay for whoever reads them."""
    digests = {one.name: one.digest for one in moved}
    known = {file.name for file in manifest.files if file.name in digests and not file.cold}
    files = tuple(
        msgspec.structs.replace(file, cold=True, digest=digests[file.name]) if file.name in known else file
        for file in manifest.files
    )
    others = tuple(one for one in manifest.retired if not (one.cold and one.name in known))
    retired = (*others, *(Retired(name, now_ms) for name in sorted(known)))
    return msgspec.structs.replace(
        manifest, number=manifest.number + 1, updated_ms=now_ms, files=files, retired=retired
    )


def without_retired(manifest: FamilyManifest, over: Iterable[Retired], now_ms: int) -> FamilyManifest:
    """A manifest without files that are removed; the same one where that is none."""
    gone = set(over)
    if not gone:
        return manifest
    left = tuple(one for one in manifest.retired if one not in gone)
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, retired=left)


def emptied(manifest: FamilyManifest, now_ms: int) -> FamilyManifest:
    """A manifest of a stream that is gone: nothing of it counts, and nobody is waited for."""
    retired = tuple(Retired(file.name, 0, file.cold) for file in manifest.files)
    retired += tuple(Retired(one.name, 0, one.cold) for one in manifest.retired)
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, files=(), retired=retired)
