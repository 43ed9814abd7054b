"""Damage that was found in a data folder."""

import msgspec

UNFINISHED_RESTORE = "a restore was begun and not finished; remove the folder and restore again"


class Finding(msgspec.Struct, frozen=True):
    """One damaged place, exact enough to look at with a hex editor."""

    where: str
    """The file, relative to the data folder."""
    what: str
    """One sentence: what is wrong there."""
    byte_range: tuple[int, int] | None = None
    """The damaged bytes of the file: the first, and the one behind the last."""
    seq_range: tuple[int, int] | None = None
    """The records concerned, first and last, when they are known."""
    topic: str | None = None
