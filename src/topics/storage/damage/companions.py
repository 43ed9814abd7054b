"""Looks at companions. One that is damaged is no loss: searches pass it over, and the pipeline makes it again."""

from collections.abc import Iterator

from topics.core.findings import Finding
from topics.indexing.companions.files import CompanionDamagedError
from topics.indexing.companions.mapped import Companion
from topics.storage.companions import CompanionFile, FamilyManifest, FamilyStore
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout

_AGAIN = "searches pass it over; `topics pipeline rebuild` makes it again"


def check_companions(fs: FileSystem, layout: Layout) -> Iterator[Finding]:
    """Everything that manifests name and that is not as they say; every byte is looked at."""
    store = FamilyStore(fs, layout)
    for topic_id in store.topic_ids():
        manifest = store.load(topic_id)
        if manifest is None:
            yield Finding(
                _where(topic_id, "manifest.json"), "it is missing or cannot be read: the pipeline begins anew"
            )
            continue
        for file in manifest.files:
            problem = _problem(store, manifest, file)
            if problem is not None:
                yield Finding(
                    _where(topic_id, file.name),
                    f"{problem}: {_AGAIN}",
                    seq_range=(file.first, file.last),
                    topic=manifest.topic,
                )


def _where(topic_id: int, name: str) -> str:
    return f"families/{topic_id:016x}/{name}"


def _problem(store: FamilyStore, manifest: FamilyManifest, file: CompanionFile) -> str | None:
    try:
        companion = Companion(store.map(manifest.topic_id, file.name))
        companion.check()
    except FileNotFoundError:
        return "it is missing"
    except (OSError, CompanionDamagedError) as error:
        return str(error)
    head = companion.head
    if (head.epoch, head.first, head.last, head.rows) != (manifest.epoch, file.first, file.last, file.rows):
        return "it is not the companion that the manifest names"
    return None
