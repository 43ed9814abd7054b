"""Small files that are replaced as a whole: whoever reads one gets the old bytes or the new ones."""

import contextlib

from topics.storage.fs import FileSystem


def replace_file(fs: FileSystem, path: str, data: bytes) -> None:
    """Puts `data` at `path`, durably. A crash leaves the old file, the new one, or a `.tmp` that is written over."""
    _replace(fs, path, path + ".tmp", data)


def replace_beside_others(fs: FileSystem, path: str, data: bytes, attempt: str) -> None:
    """The same where others may put something there at the same moment: each `attempt` has a `.tmp` of its own.

    Nothing is left of one that fails, and what a crash leaves is written over by nobody.
    """
    temporary = f"{path}.{attempt}.tmp"
    try:
        _replace(fs, path, temporary, data)
    except Exception:
        with contextlib.suppress(OSError):
            fs.remove(temporary)
        raise


def _replace(fs: FileSystem, path: str, temporary: str, data: bytes) -> None:
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
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
