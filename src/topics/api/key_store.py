"""Where keys come from: a setting, which is read once, and a file, which is read again when somebody says so."""

from topics.api.auth import BadKeyError, Key, KeyRing, parse_keys, parse_scopes
from topics.config.key_file import KeyFileError, StoredKey, load_keys


class KeyStore:
    def __init__(self, text: str | None, path: str | None) -> None:
        """`text` is dropped once its keys are parsed. Raises `BadKeyError` or `KeyFileError`."""
        self._fixed = parse_keys(text or "")
        self._path = path
        self.ring = KeyRing(self._all(), required=path is not None)

    def reload(self) -> list[Key]:
        """Reads the file again, and gives the keys that are gone. Raises `KeyFileError`, and nothing has changed."""
        return self.ring.replace(self._all())

    def _all(self) -> list[Key]:
        stored = load_keys(self._path) if self._path is not None else []
        return [*self._fixed, *(self._key(number, key) for number, key in enumerate(stored, len(self._fixed)))]

    def _key(self, number: int, key: StoredKey) -> Key:
        try:
            scopes = parse_scopes(key.scopes)
        except BadKeyError as error:
            raise KeyFileError(f"the key file {self._path} makes no sense: {key.name!r} has {error}") from error
        return Key(number, bytes.fromhex(key.sha256), scopes, tuple(key.prefixes), key.name)
