"""The manifests of a snapshot: lists of files, data and deletes apart. Those that did not change are named again."""

from collections.abc import Callable, Collection, Iterable, Sequence

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)

from topics.spark.table.io import TableIO
from topics.spark.table.schema import Shape

MANIFEST_FILES = 4096
"""Most files that one manifest names."""
SMALL_FILES = 1024
SMALL_MANIFESTS_MAX = 16
"""More manifests than this that name few files are put together, so that readers open few."""
_CODEC: AvroCompressionCodec = "deflate"
_DELETED = ManifestEntryStatus.DELETED


class ManifestMaker:
    """Writes the manifests of one snapshot. `names` gives each file a name that was never used."""

    def __init__(self, io: TableIO, snapshot_id: int, names: Callable[[], str], shape: Shape) -> None:
        self._shape = shape
        self._io = io
        self._snapshot_id = snapshot_id
        self._names = names
        self.made: dict[str, list[DataFile]] = {}
        """What each manifest that was written shows."""

    def added(self, content: ManifestContent, files: Sequence[DataFile]) -> list[ManifestFile]:
        entries = [
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file)
            for file in files
        ]
        return self._written(content, entries)

    def without(self, manifest: ManifestFile, paths: Collection[str]) -> tuple[list[ManifestFile], list[DataFile]]:
        """A manifest less some files, and what it said of those."""
        entries, gone = [], []
        for entry in manifest.fetch_manifest_entry(self._io):
            if entry.data_file.file_path in paths:
                gone.append(entry.data_file)
                entries.append(self._as(entry, ManifestEntryStatus.DELETED, self._snapshot_id))
            else:
                entries.append(self._as(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id))
        return self._written(manifest.content, entries), gone

    def merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Fewer manifests that name the same files, where there are many small ones. Empty ones fall away."""
        live = [one for one in manifests if _files(one)]
        for content in (ManifestContent.DATA, ManifestContent.DELETES):
            # What this snapshot removes has to be told by it once, so its own manifests stay as they are.
            small = [one for one in live if one.content == content and self._mergeable(one)]
            if len(small) > SMALL_MANIFESTS_MAX:
                gone = set(small)
                entries = [entry for one in small for entry in one.fetch_manifest_entry(self._io)]
                whole = [self._as(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id) for entry in entries]
                live = [*self._written(content, whole), *(one for one in live if one not in gone)]
        return live

    def listed(self, manifests: Sequence[ManifestFile], parent: int | None, sequence: int) -> str:
        """The list of a snapshot's manifests; its path."""
        path = self._names()
        output = self._io.new_output(path)
        with write_manifest_list(2, output, self._snapshot_id, parent, sequence, _CODEC) as writer:
            writer.add_manifests(list(manifests))
        return path

    def _mergeable(self, manifest: ManifestFile) -> bool:
        return _files(manifest) < SMALL_FILES and manifest.added_snapshot_id != self._snapshot_id

    def _as(self, entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status, snapshot_id=snapshot_id, sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number, data_file=entry.data_file,
        )  # fmt: skip

    def _written(self, content: ManifestContent, entries: Sequence[ManifestEntry]) -> list[ManifestFile]:
        found = []
        for at in range(0, len(entries), MANIFEST_FILES):
            output = self._io.new_output(self._names())
            with _Writer(content, output, self._snapshot_id, self._shape) as writer:
                for entry in entries[at : at + MANIFEST_FILES]:
                    writer.add_entry(entry)
            found.append(writer.to_manifest_file())
            live = [one.data_file for one in entries[at : at + MANIFEST_FILES] if one.status != _DELETED]
            self.made[output.location] = live
        return found


class _Writer(ManifestWriterV2):
    """One that lists deletes as well: the library reads them, and writes none."""

    def __init__(self, content: ManifestContent, output: object, snapshot_id: int, shape: Shape) -> None:
        super().__init__(shape.spec, shape.schema, output, snapshot_id, _CODEC)  # type: ignore[arg-type]
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self._content == ManifestContent.DATA else "deletes"}


def manifests_at(io: TableIO, path: str) -> list[ManifestFile]:
    """The manifests that a list names. The library's own way keeps them in a cache for the whole process."""
    return list(read_manifest_list(io.new_input(path)))


def live_files(io: TableIO, manifests: Iterable[ManifestFile]) -> dict[str, list[DataFile]]:
    """What counts, by the path of the manifest that names it."""
    return {
        one.manifest_path: [entry.data_file for entry in one.fetch_manifest_entry(io)]
        for one in manifests
        if _files(one)
    }


def _files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
