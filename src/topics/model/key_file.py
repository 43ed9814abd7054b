"""The key file: permissions of each key, and the SHA-256 of its secret.

The file is replaced as a whole and readable by its owner alone. A server reads it at its start, on SIGHUP, and when it
has changed; commands change it.
"""

import base64
import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from topics.model.settings import SettingsError

_SECRET_BYTES = 32
_MODE = 0o600


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The name in commands and logs."""
    sha256: str
    """The SHA-256 of the secret, in hexadecimal digits."""
    scopes: list[str] = []
    """The scopes; empty means all."""
    prefixes: list[str] = []
    """The name prefixes; empty means all names."""
    created_ms: int = 0


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keys: list[StoredKey] = []


class KeyFileError(SettingsError):
    """The file of keys cannot be used."""


def load_keys(path: str) -> list[StoredKey]:
    """Returns the keys of a file. Raises `KeyFileError`."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise KeyFileError(f"the key file {path} does not exist. {_create(path)}") from None
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be read: {error.strerror or error}") from error
    if not raw.strip():
        raise KeyFileError(f"the key file {path} is empty. {_create(path)}")
    try:
        keys = msgspec.json.decode(raw, type=_Document).keys
    except (ValueError, RecursionError) as error:
        raise KeyFileError(
            f"the key file {path} is not valid: {error}. Repair it or restore an earlier one."
        ) from error
    for key in keys:
        if len(key.sha256) != 64 or not all(digit in "0123456789abcdef" for digit in key.sha256):
            raise KeyFileError(
                f"the key file {path} is not valid: {key.name!r} needs a sha256 of 64 lower-case hex digits"
            )
    if len({key.name for key in keys}) != len(keys):
        raise KeyFileError(f"the key file {path} is not valid: two keys have the same name")
    return keys


def key_file_version(path: str) -> tuple[int, int, int] | None:
    """Returns a value that differs after each change of the file; None if it cannot be read."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _create(path: str) -> str:
    return f"Create a key with `topics key create NAME --file {path}`."


def change_keys(path: str, change: Callable[[list[StoredKey]], Sequence[StoredKey]]) -> None:
    """Replaces the keys of a file, which need not exist. One change at a time."""
    with _locked(path):
        before = load_keys(path) if os.path.exists(path) and os.path.getsize(path) else []
        _write(path, list(change(before)))


def make_secret(random: Callable[[int], bytes]) -> tuple[str, str]:
    """Returns a random secret and its SHA-256."""
    secret = base64.urlsafe_b64encode(random(_SECRET_BYTES)).rstrip(b"=").decode()
    return secret, hashlib.sha256(secret.encode()).hexdigest()


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    # On the folder: the file itself is replaced, and a lock would stay with the old file.
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: str, keys: list[StoredKey]) -> None:
    text = msgspec.json.format(msgspec.json.encode(_Document(keys=keys)), indent=2) + b"\n"
    temporary = f"{path}.{os.getpid()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
