"""Copies of index files between the data folder and the cold tier, verified by a digest of all their bytes.

An index file may be larger than the memory that a task has, so none is ever held: one that goes to an object store is
sent out of its mapping, and one that comes from there is fetched a piece at a time.
"""

import contextlib
from collections.abc import Callable, Iterator

from xxhash import xxh3_64

from topics.log.fs import File, FileSystem, map_file
from topics.log.layout import is_object_store
from topics.log.object_store.tiered_fs import open_ranged

PIECE_BYTES = 8 << 20


class CopyDamagedError(ValueError):
    """A copy is not what was copied."""


class CopyStoppedError(Exception):
    """Nobody wants the copy any more."""


def send(fs: FileSystem, source: str, target: str, attempt: str) -> int:
    """Copies a file of the data folder into the cold tier, synced, and reads it back there; the digest of its bytes.

    In a folder it is written as `attempt`, a path of its own, and renamed when it is whole: another attempt may be on
    its way, or counted already. An object is whole or not there by itself. The name is not synced. Raises
    CopyDamagedError where something else comes back than was sent.
    """
    mapped = map_file(fs, source)
    digest = _digest(mapped[at : at + PIECE_BYTES] for at in range(0, len(mapped), PIECE_BYTES))
    if fs.exists(target) and digest_of(fs, target) == digest:
        # Another attempt has written it, and somebody may read it already: it is not touched. But that attempt may have
        # been killed before it was synced; what is in a store is.
        if not is_object_store(target):
            _sync(fs, target)
        return digest
    if is_object_store(target):
        # In one piece, because a store would have to join them.
        _write(fs, target, mapped, digest, len(mapped))
        return digest
    try:
        _write(fs, attempt, mapped, digest, PIECE_BYTES)
        fs.rename(attempt, target)
    except Exception:
        # What cannot be removed either is left to whoever holds the pipeline next.
        with contextlib.suppress(OSError):
            fs.remove(attempt)
        raise
    return digest


def _write(fs: FileSystem, path: str, mapped: memoryview, digest: int, step: int) -> None:
    writer = fs.open(path, create=True)
    try:
        writer.truncate(0)
        for at in range(0, len(mapped), step):
            writer.write_at(at, mapped[at : at + step])
        writer.sync()
    finally:
        writer.close()
    if digest_of(fs, path) != digest:
        raise CopyDamagedError(f"{path} is not what was written")


def fetch(
    fs: FileSystem, source: str, target: str, digest: int | None, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    """Copies a file of the cold tier to the local disk, where it need not survive a crash.

    Raises CopyDamagedError for bytes that do not have the digest, if there is one, and leaves them to be removed;
    CopyStoppedError as soon as it `is_wanted` no longer.
    """
    hashed = xxh3_64()
    reader = open_ranged(fs, source)
    try:
        writer = fs.open(target, create=True)
        try:
            writer.truncate(0)
            at = 0
            for piece in _pieces(reader):
                if not is_wanted():
                    raise CopyStoppedError
                writer.write_at(at, piece)
                hashed.update(piece)
                at += len(piece)
        finally:
            writer.close()
    finally:
        reader.close()
    if digest is not None and hashed.intdigest() != digest:
        raise CopyDamagedError(f"{source} is not what was written")


def digest_of(fs: FileSystem, path: str) -> int:
    reader = open_ranged(fs, path)
    try:
        return _digest(_pieces(reader))
    finally:
        reader.close()


def _digest(pieces: Iterator[bytes] | Iterator[memoryview]) -> int:
    hashed = xxh3_64()
    for piece in pieces:
        hashed.update(piece)
    return int(hashed.intdigest())


def _pieces(reader: File) -> Iterator[bytes]:
    for at in range(0, reader.size(), PIECE_BYTES):
        yield reader.read_at(at, PIECE_BYTES)


def _sync(fs: FileSystem, path: str) -> None:
    file = fs.open(path, write=True)
    try:
        file.sync()
    finally:
        file.close()
