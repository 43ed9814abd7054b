"""The catalog's file: replaced in one step, so that a reader sees the old one or the new one, never a part."""

from topics.formats.catalog import Catalog, decode_catalog
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.replaced import read_whole, replace_file


def write_catalog(fs: FileSystem, layout: Layout, data: bytes) -> None:
    replace_file(fs, layout.catalog, data)


def read_catalog_bytes(fs: FileSystem, layout: Layout) -> bytes | None:
    """The file as it is; None when there is none."""
    return read_whole(fs, layout.catalog)


def read_catalog(fs: FileSystem, layout: Layout) -> Catalog | None:
    """The catalog; None when there is none, ValueError when it is damaged."""
    data = read_catalog_bytes(fs, layout)
    return None if data is None else decode_catalog(data)
