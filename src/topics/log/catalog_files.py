"""Catalog files: the whole catalog, and the changes of each checkpoint since it was written.

    meta/catalog              the whole catalog (`log.catalog`)
    meta/catalog-<number>     the changes of the catalog that follows the one with this number, 16 digits

A catalog of a million topics has hundreds of megabytes, of which a checkpoint changes a few. So the whole file is
written again only when the changes have become half as long as it, or are many files; a small one at each checkpoint. A
file of changes is

    offset  size  field
         0     8  magic "TPCDL001"
         8     8  number of the catalog it leads to
        16     8  stamp of that catalog
        24     8  number of the catalog it begins with
        32     8  stamp of that one
        40     n  msgpack of `CatalogHead`, the changed topics as `CatalogTopic`, and the ids of topics that are gone
      40+n     8  XXH3-64 of every byte before it

It is written under another name, synced and renamed, and never changed. A reader goes from file to file by number and
stamp until there is none, without a list of the folder. Files of changes stay until the second whole catalog after
them, so a reader that looks from time to time follows the changes alone, whatever became of the whole file. Stamps keep
it from following files that another history of the folder has left. A crash leaves a catalog that is complete, and
perhaps files of changes that lead to no newer one; the next whole catalog removes them.
"""

import contextlib
from collections.abc import Iterator, KeysView, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from topics.log.catalog import (
    HEAD_BYTES,
    Catalog,
    CatalogHead,
    CatalogTopic,
    Link,
    catalog_pieces,
    decode_parts,
    link_in,
    topic_id_in,
    topic_in,
)
from topics.log.fs import FileSystem, naming, read_whole, replace_file
from topics.log.layout import Layout

CHANGES_MAGIC = b"TPCDL001"
WHOLE_BYTES_MAX = 256 * 1024
"""A catalog of at most this length is written whole at each checkpoint."""
CHANGE_FILES_MAX = 128
"""The whole catalog is written after so many files of changes."""

_LINK = Struct("<QQ")
_LINKS = Struct("<QQQQ")
_CHECKSUM = Struct("<Q")
_BEGIN = len(CHANGES_MAGIC) + _LINKS.size
_LOOKS = 10


class _Changes(msgspec.Struct, array_like=True, frozen=True):
    head: CatalogHead
    topics: list[msgspec.Raw]
    gone: list[int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Changes)


class EncodedCatalog(NamedTuple):
    """A catalog whose topics are still encoded."""

    head: CatalogHead
    topics: dict[int, bytes]
    link: Link | None
    """None for a file of the version before, which no changes follow."""

    def decoded(self) -> Catalog:
        return Catalog(self.head, [topic_in(entry) for entry in self.topics.values()])


class CatalogChanges(NamedTuple):
    """The changes of a catalog since another one."""

    head: CatalogHead
    changed: set[int]
    gone: set[int]


class CatalogWriter:
    """Writes the catalog of each checkpoint, whole or as changes."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._link: Link | None = None
        self._whole_bytes = 0
        self._since_bytes = 0
        self._since: list[int] = []
        """The numbers of the files of changes since the whole catalog."""

    def load(self) -> EncodedCatalog | None:
        """Continues the catalog that is there. Raises ValueError where it is damaged."""
        found = read_encoded(self._fs, self._layout)
        if found is not None and found.link is not None:
            whole = _peek(self._fs, self._layout.catalog)
            begin = 0 if whole is None else whole.number
            numbers = _change_files(self._fs, self._layout)
            self._link, self._since = found.link, [number for number in numbers if begin <= number < found.link.number]
            self._whole_bytes = _length(self._fs, self._layout.catalog)
            self._since_bytes = sum(_length(self._fs, self._layout.catalog_changes(one)) for one in self._since)
        return found

    def publish(self, head: CatalogHead, topics: Mapping[int, bytes], changed: set[int]) -> None:
        """Publishes a catalog durably. `changed` are the ids of topics that changed, or are gone, since the last one.

        After an error the last catalog, or this one, is there, and the call may be repeated with more changes.
        """
        before = self._link
        data, link = _encoded(head, before or Link(0, 0), topics, changed)
        if before is None or self._whole_bytes <= WHOLE_BYTES_MAX or before.number >= head.number:
            self._write_whole(head, topics, link)
            return
        replace_file(self._fs, self._layout.catalog_changes(before.number), data)
        self._link = link
        self._since.append(before.number)
        self._since_bytes += len(data)
        if 2 * self._since_bytes > self._whole_bytes or len(self._since) >= CHANGE_FILES_MAX:
            # The catalog is published by its changes, and the next checkpoint tries again.
            with contextlib.suppress(OSError):
                self._write_whole(head, topics, link)

    def _write_whole(self, head: CatalogHead, topics: Mapping[int, bytes], link: Link) -> None:
        self._whole_bytes = _replace(self._fs, self._layout, catalog_pieces(head, topics.values(), link.stamp))
        keep = set(self._since) if self._link == link else set[int]()
        self._link, self._since, self._since_bytes = link, [], 0
        for number in _change_files(self._fs, self._layout):
            if number not in keep:
                self._fs.remove(self._layout.catalog_changes(number))


def _encoded(head: CatalogHead, before: Link, topics: Mapping[int, bytes], changed: set[int]) -> tuple[bytes, Link]:
    """A file of changes, and the catalog it leads to."""
    present = [msgspec.Raw(topics[topic_id]) for topic_id in sorted(changed) if topic_id in topics]
    body = _encoder.encode(_Changes(head, present, sorted(changed - topics.keys())))
    hashed = xxh3_64(_LINKS.pack(*before, head.number, len(body)))
    hashed.update(body)
    link = Link(head.number, hashed.intdigest())
    data = CHANGES_MAGIC + _LINKS.pack(*link, *before) + body
    return data + _CHECKSUM.pack(xxh3_64_intdigest(data)), link


def _replace(fs: FileSystem, layout: Layout, pieces: Iterator[bytes]) -> int:
    """Replaces the whole catalog, as `replace_file` does, piece by piece; returns its length."""
    temporary, at = layout.catalog + ".tmp", 0
    file = fs.open(temporary, create=True)
    try:
        with naming(temporary):
            file.truncate(0)
            for piece in pieces:
                file.write_at(at, piece)
                at += len(piece)
            file.sync()
    finally:
        file.close()
    fs.rename(temporary, layout.catalog)
    fs.sync_dir(layout.meta)
    return at


# Readers


class CatalogReader:
    """Reads the catalog again and again, in proportion to its changes."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._link: Link | None = None
        self._before = 0
        """The number in the name of the file of changes that led to the link."""
        self.topics: dict[int, bytes] = {}
        """The topics of the last look, encoded."""
        self.whole_reads = 0
        """How often the whole catalog was read."""
        self._head = CatalogHead(0, 0, 0)

    def look(self) -> CatalogChanges | None:
        """The changes since the last look, at first of every topic; None where there is no catalog. Raises ValueError
        where it is damaged."""
        found = None if self._link is None else self._followed(self._link)
        return found if found is not None else self._read()

    def _followed(self, link: Link) -> CatalogChanges | None:
        """The changes since a catalog; None where its files of changes are gone, or those of another history."""
        changed, gone, head, before = set[int](), set[int](), self._head, self._before
        updates: list[_Changes] = []
        for update, begin, after in _follow(self._fs, self._layout, link):
            updates.append(update)
            link, before, head = after, begin.number, update.head
        whole = _peek(self._fs, self._layout.catalog)
        if whole is None or whole.number > link.number or (whole.number == link.number and whole != link):
            return None
        if whole != link and _peek(self._fs, self._layout.catalog_changes(before)) != link:
            return None
        for update in updates:
            fresh = _apply(self.topics, update)
            changed = (changed | fresh) - set(update.gone)
            gone = (gone | set(update.gone)) - fresh
        self._link, self._before, self._head = link, before, head
        return CatalogChanges(head, changed, gone)

    def _read(self) -> CatalogChanges | None:
        found = read_encoded(self._fs, self._layout)
        if found is None:
            return None
        self.whole_reads += 1
        known, self.topics, self._link, self._head = self.topics, found.topics, found.link, found.head
        self._before = _last_begin(self._fs, self._layout, found.link)
        changed = {topic_id for topic_id, entry in found.topics.items() if known.get(topic_id) != entry}
        return CatalogChanges(found.head, changed, known.keys() - found.topics.keys())


def read_catalog(fs: FileSystem, layout: Layout) -> Catalog | None:
    """The catalog; None when there is none, ValueError when it is damaged."""
    found = read_encoded(fs, layout)
    return None if found is None else found.decoded()


def read_encoded(fs: FileSystem, layout: Layout) -> EncodedCatalog | None:
    """The catalog with its topics still encoded; None when there is none, ValueError when it is damaged."""
    for _ in range(_LOOKS):
        data = read_whole(fs, layout.catalog)
        if data is None:
            return None
        head, topics = decode_parts(data)
        link = link_in(data)
        if link is None:
            return EncodedCatalog(head, topics, None)
        del data
        for update, _, after in _follow(fs, layout, link):
            _apply(topics, update)
            head, link = update.head, after
        # Twice a whole catalog may have been written meanwhile, and the changes that lead there are gone.
        whole = _peek(fs, layout.catalog)
        if whole is not None and whole.number <= link.number:
            return EncodedCatalog(head, topics, link)
    raise ValueError("it changes faster than it can be read")


def _follow(fs: FileSystem, layout: Layout, link: Link) -> Iterator[tuple[_Changes, Link, Link]]:
    """The files of changes behind a catalog, each with the catalogs before and after it."""
    while True:
        data = read_whole(fs, layout.catalog_changes(link.number))
        if data is None:
            return
        if len(data) < _BEGIN + 8 or data[: len(CHANGES_MAGIC)] != CHANGES_MAGIC:
            raise ValueError(f"the changes behind catalog {link.number} have an unknown format")
        if xxh3_64_intdigest(memoryview(data)[:-8]) != _CHECKSUM.unpack(data[-8:])[0]:
            raise ValueError(f"the changes behind catalog {link.number} have a wrong checksum")
        number, stamp, *begin = _LINKS.unpack_from(data, len(CHANGES_MAGIC))
        if Link(*begin) != link:
            return
        before, link = link, Link(number, stamp)
        yield _decoder.decode(memoryview(data)[_BEGIN:-8]), before, link


def _apply(topics: dict[int, bytes], update: _Changes) -> set[int]:
    """Applies changes; returns the ids of the changed topics."""
    fresh = {topic_id_in(raw): raw for raw in map(bytes, update.topics)}
    topics.update(fresh)
    for topic_id in update.gone:
        topics.pop(topic_id, None)
    return set(fresh)


def _peek(fs: FileSystem, path: str) -> Link | None:
    """The catalog that a file has, or leads to; None where there is no such file."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        data = file.read_at(0, min(file.size(), HEAD_BYTES))
    finally:
        file.close()
    magic = data[: len(CHANGES_MAGIC)]
    if magic == CHANGES_MAGIC and len(data) == HEAD_BYTES:
        return Link(*_LINK.unpack_from(data, len(CHANGES_MAGIC)))
    return link_in(data)


def _last_begin(fs: FileSystem, layout: Layout, link: Link | None) -> int:
    """The number of the catalog before one, by its file of changes; 0 where it is the whole file."""
    if link is None or _peek(fs, layout.catalog) == link:
        return 0
    numbers: Sequence[int] = _change_files(fs, layout)
    return next((one for one in reversed(numbers) if _peek(fs, layout.catalog_changes(one)) == link), 0)


def _change_files(fs: FileSystem, layout: Layout) -> list[int]:
    found = [name.removeprefix("catalog-") for name in fs.list_dir(layout.meta) if name.startswith("catalog-")]
    return sorted(int(digits) for digits in found if len(digits) == 16 and digits.isdigit())


def _length(fs: FileSystem, path: str) -> int:
    file = fs.open(path)
    try:
        return file.size()
    finally:
        file.close()


class CatalogTopics(Mapping[int, CatalogTopic]):
    """Topics by id that are decoded when they are asked for: a million of them would not fit into memory."""

    def __init__(self, entries: Mapping[int, bytes], ids: Sequence[int] | None = None) -> None:
        """`ids` selects some of the entries."""
        self._entries = entries
        self._ids = ids

    def keys(self) -> KeysView[int]:
        return self._entries.keys() if self._ids is None else super().keys()

    def __getitem__(self, topic_id: int) -> CatalogTopic:
        return topic_in(self._entries[topic_id])

    def __contains__(self, topic_id: object) -> bool:
        return topic_id in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries if self._ids is None else self._ids)

    def __len__(self) -> int:
        return len(self._entries if self._ids is None else self._ids)
