"""Pipeline settings: the archive's settings are recorded with the data, so that every run uses the same ones.

    <data folder>/pipeline/settings.json    JSON: the value of each recorded setting; null is "not set"
    <archive>/settings.json                 the same without the archive's place

The first use of an archive writes both files: the start of a server, or a run of the pipeline. After that every run
takes the settings it was not given from there, and refuses those that were given and differ. Without this a run by hand
that lacks one variable would build a second archive, drop a table from its catalog, or empty every typed table. The
record of the data folder wins; that of the archive is for a data folder that has none, such as a restored one. Files
are renamed into place, the data folder's first, so a crash leaves the old record or the new one.

A server does not ask an object store when it starts. It records only the places, `archive_dir` and `cold_dir`, in the
data folder; the first run of the pipeline adds the rest, from the record in the archive if there is one. `cold_dir` is
of the data folder alone, and only a server records it: a server with a wrong cold tier cannot start.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from topics.log.fs import (
    FileSystem,
    WrongChecksumError,
    add_checksum,
    check_json,
    read_checked,
    read_whole,
    replace_file,
)
from topics.log.layout import Layout, absolute, check_place, is_object_store
from topics.log.object_store.tiered_fs import guest_files
from topics.log.posix import PosixFileSystem
from topics.model.settings import SETTINGS, Settings, SettingsError, read_value

RECORDED = (
    "archive_dir", "archive_catalog", "archive_table", "archive_typed", "archive_erase_ms", "archive_file_bytes",
    "archive_retention_ms", "archive_grace_ms", "archive_keep_snapshots_ms", "cold_dir",
)  # fmt: skip
"""The settings that are recorded. Each of them determines which data is stored, or where."""
_PLACES = {"archive_dir", "cold_dir"}
"""The settings that are recorded in the data folder alone."""

Record = Mapping[str, Any]
_SETTINGS = {setting.name: setting for setting in SETTINGS}


class SettingsConflictError(SettingsError):
    """The settings of a run differ from the recorded ones of the archive."""


def layout_of(settings: Settings) -> Layout:
    return Layout(str(absolute(settings.data_dir)), absolute(check_place(settings.cold_dir)))


def archive_root(settings: Settings) -> str:
    """The location of the archive: a folder, or the URL of an object store."""
    return absolute(check_place(settings.archive_dir, "the archive")) or layout_of(settings).archive


def files_of(settings: Settings) -> FileSystem:
    """A file system that reaches the data folder, the cold tier and the archive."""
    return guest_files(settings.cold_dir, archive_root(settings))


def has_archive(settings: Settings) -> bool:
    return settings.archive in ("1", "true")


def resolve(
    settings: Settings,
    given: Collection[str],
    reconfigure: Collection[str] = (),
    files: Callable[[Settings], FileSystem] = files_of,
    ask_archive: bool = True,
) -> Settings:
    """The settings with the recorded values in place of those that were not given.

    `given` has the names that the command line or the environment set, `reconfigure` those whose recorded value is
    replaced, by the default where they are not given. Nothing is written. Raises SettingsConflictError.
    """
    if not has_archive(settings):
        return settings
    settings = msgspec.structs.replace(
        settings, archive_dir=_place(settings), cold_dir=absolute(check_place(settings.cold_dir))
    )
    layout = layout_of(settings)
    near = _read(PosixFileSystem(), layout.pipeline_settings) or {}
    settings = _with(settings, near, given, reconfigure, layout.pipeline_settings)
    if not ask_archive:
        return settings
    if near and "archive_dir" not in reconfigure:
        _check_there(layout, settings, files)
    if near.keys() <= _PLACES:
        fs, where = files(settings), f"{archive_root(settings)}/settings.json"
        far = _read(fs, where)
        if far is None:
            _check_unrecorded(fs, settings, {*given, *near}, reconfigure)
        else:
            settings = _with(settings, {**far, **near}, given, reconfigure, where)
    return settings


def record(settings: Settings, fs: FileSystem, reconfigure: Collection[str] = ()) -> None:
    """Records resolved settings with the data and in the archive, where they are not recorded as they are."""
    layout, root = layout_of(settings), archive_root(settings)
    values = {name: getattr(settings, name) for name in RECORDED if name not in _PLACES}
    cold = "cold_dir" in reconfigure or "cold_dir" in (recorded(settings) or {})
    _write(fs, layout.pipeline, {**values, "archive_dir": _place(settings), **(_cold(settings) if cold else {})})
    _write(fs, root, values)


def check_server(settings: Settings, given: Collection[str], reconfigure: Collection[str]) -> Settings:
    """The settings of a server with the recorded cold tier. Refuses settings that differ from the recorded ones, and
    records those that are to be replaced.

    An object store is not asked, as it may be away when a server starts: the pipeline does it.
    """
    if not has_archive(settings):
        return settings
    place = (recorded(settings) or {}).get("archive_dir", settings.archive_dir)
    found = resolve(settings, given, reconfigure, ask_archive=bool(reconfigure) or not is_object_store(place))
    if reconfigure:
        record(found, files_of(found), reconfigure)
    return msgspec.structs.replace(settings, cold_dir=found.cold_dir)


def record_first_use(settings: Settings) -> None:
    """Records the settings of a server in a folder whose archive has none, or else its places.

    A full disk leaves it to the pipeline.
    """
    if not has_archive(settings):
        return
    fs, near, folder = PosixFileSystem(), recorded(settings), layout_of(settings).pipeline
    with contextlib.suppress(OSError):
        if near is not None:
            _write(fs, folder, {**near, **_cold(settings)})
        elif is_object_store(settings.archive_dir) or _read(fs, f"{archive_root(settings)}/settings.json") is not None:
            _write(fs, folder, {"archive_dir": _place(settings), **_cold(settings)})
        else:
            record(settings, fs, ("cold_dir",))


def recorded(settings: Settings) -> Record | None:
    """The settings recorded in the data folder; None if there are none."""
    return _read(PosixFileSystem(), layout_of(settings).pipeline_settings)


def names_of(text: str | None) -> list[str]:
    """The names in a list such as `archive-typed,archive_dir`. Raises SettingsError for one that is not recorded."""
    names = [word.strip().lower().replace("-", "_") for word in (text or "").split(",") if word.strip()]
    for name in names:
        if name not in RECORDED:
            raise SettingsError(f"{name} is not a recorded setting. Accepted are {', '.join(RECORDED)}")
    return names


def _with(
    settings: Settings, record: Record, given: Collection[str], reconfigure: Collection[str], where: str
) -> Settings:
    """The settings with recorded values. Raises SettingsConflictError where a given one differs."""
    conflicts, kept = {}, {}
    for name, value in record.items():
        if name in reconfigure:
            continue
        if name in given and getattr(settings, name) != value:
            conflicts[name] = f"{name} is {_as_text(getattr(settings, name))}, and {_as_text(value)} is recorded"
        kept[name] = value
    if conflicts:
        raise _conflict(list(conflicts.values()), list(conflicts), where)
    return msgspec.structs.replace(settings, **kept)


def _check_there(layout: Layout, settings: Settings, files: Callable[[Settings], FileSystem]) -> None:
    """Refuses to create an archive in place of a missing one, such as an unmounted folder."""
    root = archive_root(settings)
    if _has_archived(layout) and not _names(files(settings), f"{root}/ledger"):
        raise SettingsConflictError(
            f"the archive of this data folder is not in {root}: mount it, or put it back. To begin a new one, add "
            "--reconfigure archive_dir"
        )


def _has_archived(layout: Layout) -> bool:
    """Whether an archive has confirmed deletes, so that a new one in its place would miss what only the old one has."""
    try:
        acked = read_checked(PosixFileSystem(), layout.pipeline_seen).strip()
    except WrongChecksumError:
        return True
    return acked.isdigit() and int(acked) > 0


def _place(settings: Settings) -> str | None:
    """The archive's place; None for the one in the data folder, so that a moved folder finds its archive."""
    root = archive_root(settings)
    return None if root == layout_of(settings).archive else root


def _cold(settings: Settings) -> Record:
    """The recorded form of the cold tier: empty without one, so that it can be added later."""
    place = absolute(check_place(settings.cold_dir))
    return {} if place is None else {"cold_dir": place}


def _read(fs: FileSystem, path: str) -> Record | None:
    data = read_whole(fs, path)
    if data is None:
        return None
    try:
        found = msgspec.json.decode(check_json(data), type=dict[str, int | str | None])
        return {
            name: None if found[name] is None else read_value(_SETTINGS[name], found[name], f"{name} in {path}")
            for name in RECORDED
            if name in found
        }
    except (msgspec.DecodeError, WrongChecksumError, SettingsError) as error:
        raise SettingsError(
            f"the recorded settings in {path} cannot be read: {error}. Put the file back from a copy, or remove it and "
            "give the run every setting that the archive was made with"
        ) from error


def _write(fs: FileSystem, folder: str, values: Record) -> None:
    text = msgspec.json.format(
        msgspec.json.encode({name: values[name] for name in RECORDED if name in values}), indent=1
    )
    path, data = f"{folder}/settings.json", add_checksum(text) + b"\n"
    if read_whole(fs, path) != data:
        fs.make_dirs(folder)
        replace_file(fs, path, data)


def _conflict(reported: Collection[str], names: Collection[str], where: str) -> SettingsConflictError:
    return SettingsConflictError(
        f"{'; '.join(reported)} ({where}): a run with other settings than the archive was made with could remove data. "
        f"Leave out {', '.join(_SETTINGS[name].env for name in names)} to go on as recorded, or add --reconfigure "
        f"{','.join(names)} to change it"
    )


def _as_text(value: object) -> str:
    return "not set" if value is None else repr(value)


# Archives of earlier versions have no record. The settings evident from their files must agree with the first run that
# records.


def _check_unrecorded(fs: FileSystem, settings: Settings, given: Collection[str], reconfigure: Collection[str]) -> None:
    root, found = archive_root(settings), {}
    names = _names(fs, f"{root}/metadata")
    versions = [name for name in names if name.endswith(".metadata.json")]
    if settings.archive_catalog is None and versions and not any(name.startswith("v") for name in versions):
        found["archive_catalog"] = "archive_catalog is not set, and the archive's table is in a catalog"
    if settings.archive_typed is None and _names(fs, f"{root}/typed"):
        found["archive_typed"] = "archive_typed is not set, and the archive has typed tables"
    if "archive_dir" not in given and not _names(fs, f"{root}/ledger") and _has_archived(layout_of(settings)):
        found["archive_dir"] = f"archive_dir is not set, and the archive of this folder is not in {root}"
    left = [name for name in found if name not in reconfigure]
    if left:
        raise SettingsConflictError(
            f"{'; '.join(found[name] for name in left)}: this run could remove data. Set "
            f"{', '.join(_SETTINGS[name].env for name in left)} as it was when the archive was made, or add "
            f"--reconfigure {','.join(left)} to go on without it"
        )


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except FileNotFoundError:
        return []
