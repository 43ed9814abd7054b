"""`topics key revoke`."""

from topics.cli.key.place import KeyFile, key_file
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import note
from topics.config.key_file import StoredKey, change_keys


def revoke(name: str, /, *, file: KeyFile = None) -> int:
    """Take a key back. A running server lets it go after SIGHUP, and what was opened with it ends.

    Parameters
    ----------
    name
        Which one.
    """

    def without(keys: list[StoredKey]) -> list[StoredKey]:
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise UsageError(f"there is no key {name}")
        return left

    path = key_file(file)
    change_keys(path, without)
    note(f"took {name} out of {path}; a running server lets it go after SIGHUP")
    return 0
