"""The two halves of a repair that a crash must not come between: everything is prepared aside, then put into place.

Before the repaired state counts, no file of the folder is changed: new segments are written below `repair/`. A plan
beside them says which snapshot will make the repair count and which files go out of use then. Once that snapshot is
there, what is left to do is renames, and the plan tells whoever comes after a crash to finish them:

1. the files that were damaged move to `damaged-<number>/`, which keeps them for ever, and with them `report.json`;
2. the prepared segments take their places;
3. the plan is removed.

A plan whose snapshot is not there counts for nothing: the folder is as it was, and the repair starts again. While
there is a plan no server starts, so nobody ever sees the folder in between.
"""

import msgspec

from topics.core.errors import DamageError
from topics.core.findings import Finding
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.storage.segments import SegmentDraft, SegmentKey, SegmentStore


class Plan(msgspec.Struct, frozen=True):
    snapshot: int
    """The number of the snapshot that makes the repair count."""
    moves: list[tuple[str, str]]
    """Files that go out of use, each with the place that keeps it; the last one is the report about all this."""


class StagedStore(SegmentStore):
    """A segment store that leaves the folder alone: what is written goes below `repair/` until `publish`."""

    def __init__(self, fs: FileSystem, layout: Layout, cache_bytes: int) -> None:
        super().__init__(fs, layout, cache_bytes)
        self._aside = SegmentStore(fs, Layout(layout.repair), cache_bytes)
        self._staged: set[SegmentKey] = set()

    def path(self, key: SegmentKey) -> str:
        return self._aside.path(key) if key in self._staged else super().path(key)

    def write(self, draft: SegmentDraft) -> None:
        self._aside.write(draft)
        self._staged.add(SegmentKey(draft.head.topic_id, draft.head.first_seq))

    def sync_folder(self, topic_id: int, cold: bool = False) -> None:
        self._aside.sync_folder(topic_id, cold)

    def published(self) -> None:
        """The prepared segments are in their places now."""
        for key in list(self._staged):
            self.forget(key)
        self._staged.clear()


def write_plan(fs: FileSystem, layout: Layout, plan: Plan, report: bytes) -> None:
    fs.make_dirs(layout.repair)
    _put(fs, plan.moves[-1][0], report)
    _put(fs, layout.repair_plan + ".tmp", msgspec.json.encode(plan))
    fs.rename(layout.repair_plan + ".tmp", layout.repair_plan)
    fs.sync_dir(layout.repair)


def read_plan(fs: FileSystem, layout: Layout) -> Plan | None:
    try:
        file = fs.open(layout.repair_plan)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(file.read_at(0, file.size()), type=Plan)
    except ValueError as error:
        what = f"the plan of an unfinished repair cannot be read: {error}"
        raise DamageError([Finding(layout.repair_plan, what)]) from error
    finally:
        file.close()


def carry_out(fs: FileSystem, layout: Layout, plan: Plan) -> None:
    """Steps 1 and 2; run twice it changes nothing."""
    # The snapshot may have been renamed by a process that was killed before it could make the name durable.
    fs.sync_dir(layout.meta)
    touched: set[str] = set()
    for source, target in plan.moves:
        if fs.exists(source) and not fs.exists(target):
            fs.make_dirs(_folder(target))
            fs.rename(source, target)
        touched |= {folder for folder in (_folder(source), _folder(target)) if fs.exists(folder)}
    for folder in sorted(touched):
        # What comes next puts new files into the old places: the old ones must be safe before.
        fs.sync_dir(folder)
    staged = Layout(layout.repair)
    for name in _names(fs, staged.topics()):
        source, target = f"{staged.topics()}/{name}", f"{layout.topics()}/{name}"
        fs.make_dirs(target)
        for file in _names(fs, source):
            fs.rename(f"{source}/{file}", f"{target}/{file}")
        fs.sync_dir(target)


def clear(fs: FileSystem, layout: Layout) -> None:
    """Removes the plan and everything prepared, in that order."""
    if not fs.exists(layout.repair):
        return
    for name in ("plan", "plan.tmp", "report.json"):
        if fs.exists(f"{layout.repair}/{name}"):
            fs.remove(f"{layout.repair}/{name}")
    fs.sync_dir(layout.repair)
    staged = Layout(layout.repair)
    for name in _names(fs, staged.topics()):
        for file in _names(fs, f"{staged.topics()}/{name}"):
            fs.remove(f"{staged.topics()}/{name}/{file}")
        fs.remove_dir(f"{staged.topics()}/{name}")
    if fs.exists(staged.topics()):
        fs.remove_dir(staged.topics())
    fs.remove_dir(layout.repair)
    fs.sync_dir(layout.root)


def evidence_folders(fs: FileSystem, layout: Layout) -> list[str]:
    """Where the files of the next repair will go: a folder of one new number in each tier."""
    roots = [root for root in (layout.root, layout.cold_root) if root is not None]
    number = 1
    while any(fs.exists(f"{root}/damaged-{number}") for root in roots):
        number += 1
    return [f"{root}/damaged-{number}" for root in roots]


def read_report(fs: FileSystem, plan: Plan) -> bytes:
    """The report of a repair that was carried out."""
    file = fs.open(plan.moves[-1][1])
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def _put(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()


def _folder(path: str) -> str:
    return path.rsplit("/", 1)[0]


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except FileNotFoundError:
        return []
