"""Looks at companions. One that is damaged is no loss: searches pass it over, and the pipeline makes it again."""

from collections.abc import Iterator

from topics.core.findings import Finding
from topics.indexing.companions.files import CompanionDamagedError
from topics.indexing.companions.mapped import Companion
from topics.storage.companion_copies import digest_of
from topics.storage.companions import CompanionFile, FamilyManifest, FamilyStore
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.places import is_object_store

_AGAIN = "searches pass it over; `topics pipeline rebuild` makes it again"


def check_companions(fs: FileSystem, layout: Layout) -> Iterator[Finding]:
    """Everything that manifests name and that is not as they say; every byte is looked at, in the cold tier as well."""
    store = FamilyStore(fs, layout)
    for topic_id in store.topic_ids():
        manifest = store.load(topic_id)
        if manifest is None:
            yield Finding(
                _where(topic_id, "manifest.json"), "it is missing or cannot be read: the pipeline begins anew"
            )
            continue
        for file in manifest.files:
            problem = _problem(fs, store, manifest, file)
            if problem is not None:
                yield Finding(
                    _where(topic_id, file.name, file.cold),
                    f"{problem}: {_AGAIN}",
                    seq_range=(file.first, file.last),
                    topic=manifest.topic,
                )


def _where(topic_id: int, name: str, cold: bool = False) -> str:
    return f"{'the cold tier, ' if cold else ''}families/{topic_id:016x}/{name}"


def _problem(fs: FileSystem, store: FamilyStore, manifest: FamilyManifest, file: CompanionFile) -> str | None:
    if file.cold and not store.has_cold:
        return "it is in a cold tier that is not named"
    path = store.path(manifest.topic_id, file.name, file.cold)
    try:
        if is_object_store(path):
            # A piece at a time: it may be larger than the memory.
            return None if digest_of(fs, path) == file.digest else "it is not what was put there"
        companion = Companion(store.map(manifest.topic_id, file.name, file.cold))
        companion.check()
    except FileNotFoundError:
        return "it is missing"
    except (OSError, CompanionDamagedError) as error:
        return str(error)
    head = companion.head
    if (head.epoch, head.first, head.last, head.rows) != (manifest.epoch, file.first, file.last, file.rows):
        return "it is not the companion that the manifest names"
    return None
