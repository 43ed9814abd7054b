"""Files in a data folder that are no part of the state: what a crash left, and what does not belong there."""

from collections.abc import Iterator

from topics.storage.damage.snapshot_chain import Chain
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout, number_in
from topics.storage.segments import SegmentKey

_OWN = (
    ".topics.lock", "archive", "backup", "families", "machine", "meta", "near", "pipeline", "repair", "reserve",
    "restoring", "topics", "wal",
)  # fmt: skip
_OWN_META = ("catalog", "newest")


def find_orphans(fs: FileSystem, layout: Layout, chain: Chain, named: set[SegmentKey]) -> Iterator[tuple[str, str]]:
    """Each such file's path and what it is. None of them is damage, and the next start removes most of them."""
    for name in _names(fs, layout.root):
        if name not in _OWN and number_in(name, "damaged-", "") is None:
            yield f"{layout.root}/{name}", "it does not belong to the log"
    yield from _meta(fs, layout, chain)
    yield from _logs(fs, layout, chain)
    for cold in (False, True) if layout.cold_root is not None else (False,):
        yield from _segments(fs, layout, named, cold)


def _meta(fs: FileSystem, layout: Layout, chain: Chain) -> Iterator[tuple[str, str]]:
    for number in chain.replaced:
        yield layout.snapshot(number), "a newer snapshot has replaced it"
    for name in _names(fs, layout.meta):
        if name.endswith(".tmp"):
            yield f"{layout.meta}/{name}", "a snapshot that was never finished"
        elif name not in _OWN_META and number_in(name, "snapshot-", ".bin") is None:
            yield f"{layout.meta}/{name}", "it does not belong to the log"


def _logs(fs: FileSystem, layout: Layout, chain: Chain) -> Iterator[tuple[str, str]]:
    positions = {p.shard: p.file for p in chain.newest.positions} if chain.newest is not None and chain.located else {}
    for folder in _names(fs, layout.wal):
        shard = number_in(folder, "shard-", "")
        if shard is None:
            yield f"{layout.wal}/{folder}", "it does not belong to the log"
            continue
        for name in _names(fs, layout.shard(shard)):
            number = number_in(name, "", ".wal")
            if number is None:
                yield f"{layout.shard(shard)}/{name}", "it does not belong to the log"
            elif number < positions.get(shard, 0):
                yield f"{layout.shard(shard)}/{name}", "a log file that the snapshots have absorbed"


def _segments(fs: FileSystem, layout: Layout, named: set[SegmentKey], cold: bool) -> Iterator[tuple[str, str]]:
    for folder in _names(fs, layout.topics(cold)):
        topic_id, path = topic_id_of(folder), f"{layout.topics(cold)}/{folder}"
        if topic_id is None:
            yield path, "it does not belong to the log"
            continue
        for name in _names(fs, path):
            first = number_in(name.removesuffix(".data").removesuffix(".idx"), "seg-", "")
            if first is None:
                yield f"{path}/{name}", "it does not belong to the log"
            elif SegmentKey(topic_id, first, cold) not in named:
                yield f"{path}/{name}", "a segment file that no snapshot names"


def topic_folders(fs: FileSystem, layout: Layout) -> set[int]:
    """The numbers of all topics that have a folder, in either tier."""
    tiers = (False, True) if layout.cold_root is not None else (False,)
    found = {topic_id_of(name) for cold in tiers for name in _names(fs, layout.topics(cold))}
    return {topic_id for topic_id in found if topic_id is not None}


def topic_id_of(folder: str) -> int | None:
    """The number of the topic that a folder's name stands for; None for any other name."""
    digits = len(folder) == 16 and all(digit in "0123456789abcdef" for digit in folder)
    return int(folder, 16) if digits else None


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.list_dir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
