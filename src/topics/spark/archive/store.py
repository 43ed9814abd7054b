"""The archive's files: manifests, replaced in one step, and data files that count once a manifest names them."""

from collections.abc import Callable
from typing import TypeVar

from topics.spark.archive.manifest import Manifest, decode_manifest, decode_masked, encode_manifest
from topics.spark.archive.masks import Mask
from topics.storage.fs import FileSystem
from topics.storage.replaced import read_whole, replace_file

T = TypeVar("T")

_FOLDER = "topic_id="
_MANIFEST = "manifest.json"


class ArchiveDamagedError(Exception):
    """A manifest cannot be read. It is never guessed: that could archive records twice, or show deleted ones."""


class ArchiveStore:
    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self.root = root

    def topic_folder(self, topic_id: int) -> str:
        return f"{self.root}/{_FOLDER}{topic_id:016x}"

    def topic_ids(self) -> list[int]:
        """Every topic that has a folder here."""
        try:
            names = self._fs.list_dir(self.root)
        except FileNotFoundError:
            return []
        return [int(name.removeprefix(_FOLDER), 16) for name in names if name.startswith(_FOLDER)]

    def load(self, topic_id: int) -> Manifest | None:
        return self._decoded(topic_id, decode_manifest)

    def load_masked(self, topic_id: int) -> tuple[Manifest, Mask] | None:
        """A topic's manifest for a reader: without its deletes, and those apart."""
        return self._decoded(topic_id, decode_masked)

    def _decoded(self, topic_id: int, decode: Callable[[bytes], T]) -> T | None:
        path = f"{self.topic_folder(topic_id)}/{_MANIFEST}"
        data = read_whole(self._fs, path)
        if data is None:
            return None
        try:
            return decode(data)
        except ValueError as error:
            raise ArchiveDamagedError(f"{path}: {error}") from error

    def save(self, manifest: Manifest) -> None:
        """Makes a manifest the one that counts. What it names must be on disk."""
        folder = self.topic_folder(manifest.topic_id)
        self._fs.make_dirs(folder)
        replace_file(self._fs, f"{folder}/{_MANIFEST}", encode_manifest(manifest))

    def sweep(self, topic_id: int, manifest: Manifest | None) -> int:
        """Removes data files that no manifest names: what a killed run left. Only whoever holds the pipeline may."""
        named = manifest.named() if manifest is not None else set()
        removed = 0
        for path in self._data_files(topic_id):
            if path not in named:
                self._fs.remove(f"{self.topic_folder(topic_id)}/{path}")
                removed += 1
        return removed

    def remove_files(self, topic_id: int, paths: list[str]) -> None:
        for path in paths:
            try:
                self._fs.remove(f"{self.topic_folder(topic_id)}/{path}")
            except FileNotFoundError:
                continue

    def remove_manifest(self, topic_id: int) -> None:
        """From now on nothing of a topic counts."""
        folder = self.topic_folder(topic_id)
        for name in (_MANIFEST, _MANIFEST + ".tmp"):
            try:
                self._fs.remove(f"{folder}/{name}")
            except FileNotFoundError:
                continue
        self._fs.sync_dir(folder)

    def remove_topic(self, topic_id: int) -> None:
        """Removes everything of a topic, the manifest first: without it nothing counts."""
        self.remove_manifest(topic_id)
        folder = self.topic_folder(topic_id)
        for path in self._data_files(topic_id):
            self._fs.remove(f"{folder}/{path}")
        # An object store has no folders: what is empty is not there.
        for name in self._names(folder):
            self._fs.remove_dir(f"{folder}/{name}")
        self._fs.remove_dir(folder)
        self._fs.sync_dir(self.root)

    def _data_files(self, topic_id: int) -> list[str]:
        folder = self.topic_folder(topic_id)
        found = []
        for name in self._names(folder):
            if name.startswith("date="):
                found += [f"{name}/{inner}" for inner in self._names(f"{folder}/{name}")]
        return found

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.list_dir(folder)
        except FileNotFoundError:
            return []
