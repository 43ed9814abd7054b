"""Small files that are replaced as a whole: whoever reads one gets the old bytes or the new ones."""

from topics.storage.fs import FileSystem


def replace_file(fs: FileSystem, path: str, data: bytes) -> None:
    """Puts `data` at `path`, durably. A crash leaves the old file, the new one, or a `.tmp` that is written over."""
    file = fs.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    fs.rename(path + ".tmp", path)
    fs.sync_dir(path.rpartition("/")[0] or ".")


def read_whole(fs: FileSystem, path: str) -> bytes | None:
    """The bytes of a file; None when it is not there."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
