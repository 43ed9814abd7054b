"""Where segments and the archive may be kept besides the data folder: a folder, or an object store that a URL names."""

import os

from topics.config.values import SettingsError

SCHEMES = ("s3", "gs", "az")
"""Amazon S3 and everything that speaks like it, Google Cloud Storage, Azure Blob Storage."""


def is_object_store(place: str | None) -> bool:
    return place is not None and "://" in place


def check_place(place: str | None, what: str = "the cold folder") -> str | None:
    """A place in its one spelling; raises SettingsError for a URL that names no object store."""
    if place is None:
        return None
    if not is_object_store(place):
        return place.rstrip("/") or "/"
    scheme, _, rest = place.partition("://")
    if scheme not in SCHEMES or not rest.strip("/") or rest.startswith("/"):
        accepted = ", ".join(f"{known}://bucket/prefix" for known in SCHEMES)
        raise SettingsError(f"{what} {place} names no object store: accepted is a folder, or {accepted}")
    if any(part in ("", ".", "..") for part in rest.rstrip("/").split("/")):
        raise SettingsError(f"{what} {place} has an empty part, or one that leads elsewhere")
    return place.rstrip("/")


def check_cold(place: str | None, data_dir: str) -> str | None:
    """The place of the cold tier; raises SettingsError for one that is the data folder, under whatever name.

    A segment is copied there and then removed from where it was. Both would be the same file.
    """
    checked = check_place(place)
    if checked is not None and not is_object_store(checked) and _is_same(checked, data_dir):
        raise SettingsError(f"the cold folder {place} is the data folder: segments that move there would be lost")
    return checked


def check_backup(place: str | None, data_dir: str) -> str | None:
    """The place for backups; raises SettingsError for one that is the data folder or in it, under whatever name.

    What stands there without being named by the log is damage, or in the way; and what takes the one takes the other.
    """
    checked = check_place(place, "the place for backups")
    if checked is not None and not is_object_store(checked):
        inner, outer = os.path.realpath(checked), os.path.realpath(data_dir)
        if os.path.commonpath((inner, outer)) == outer:
            raise SettingsError(f"the place for backups {place} is in the data folder: put them on another disk")
    return checked


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # One of them is yet to be made.
        return os.path.realpath(one) == os.path.realpath(other)


def absolute(place: str | None) -> str | None:
    """The place as every process on the machine can find it."""
    return place if place is None or is_object_store(place) else os.path.abspath(place)
