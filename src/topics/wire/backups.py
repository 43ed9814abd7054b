"""What is said about backups."""

import msgspec


class BackupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One backup of this data folder."""

    number: int
    made_ms: int
    moment_ms: int
    """Everything logged up to this moment is in it."""
    topics: int
    bytes: int
    """Of all its files; backups share what they have in common."""
    before: int | None
    """From this backup on every moment up to this one can be restored; None where there is no log in between."""
    release: str


class BackupStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A backup is being taken; the list of backups tells when it is there."""

    place: str
    running: bool


class BackupsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where backups go, how they are doing, and which there are, the oldest first."""

    place: str
    lineage: str | None
    """The name of this data folder at the place; None before the first backup."""
    running: bool
    interval_ms: int
    """Time between backups that are taken by themselves; 0 is never."""
    lag_ms: int | None
    """How far the newest one of this run, with the log shipped behind it, is behind; None before there is one."""
    ship_ms: int
    """Longest time that the log waits to be shipped; 0 is never."""
    shipped_moment_ms: int | None
    """Everything logged up to this moment is at the place; None before there is a backup of this run."""
    ship_error: str | None
    """Why the log could not be shipped the last time; None where it could."""
    completed: int
    failures: int
    error: str | None
    """Why the last one failed; None where it did not."""
    backups: list[BackupInfo]
