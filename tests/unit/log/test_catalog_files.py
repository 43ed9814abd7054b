"""Catalog files: a reader that follows the changes has the same catalog as one that reads everything."""

from random import Random

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from topics.log import catalog, catalog_files
from topics.log.catalog import CatalogHead, CatalogSegment, CatalogTopic, encode_topic
from topics.log.catalog_files import CatalogReader, CatalogWriter, read_catalog, read_encoded
from topics.log.fs import read_whole, replace_file
from topics.log.layout import Layout
from topics.testing import FakeDisk, PowerCut, Survival

LAYOUT = Layout("data")
ENDINGS = (Survival.EVERYTHING, Survival.NOTHING, Survival.TORN, Survival.SCATTERED)


@pytest.fixture(autouse=True)
def changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also small catalogs are followed by files of changes."""
    monkeypatch.setattr(catalog_files, "WHOLE_BYTES_MAX", 0)


def entry(topic_id: int, version: int) -> bytes:
    segments = [CatalogSegment(1 + n, 1, 10, 0, 0, 0, 0, False) for n in range(version % 7)]
    return encode_topic(CatalogTopic(topic_id, f"t{topic_id}", 1, b"{}", version, 1, 1, segments, [], []))


def new_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs(LAYOUT.meta)
    return disk


class Engine:
    """Publishes a catalog at each checkpoint, and knows the one that it published last."""

    def __init__(self, disk: FakeDisk, topics: dict[int, bytes], number: int = 0) -> None:
        self.writer = CatalogWriter(disk, LAYOUT)
        self.topics = topics
        self.number = number
        self.unpublished = set(topics)

    def change(self, random: Random) -> None:
        for _ in range(random.randrange(3)):
            topic_id = random.randrange(1, 40)
            if random.random() < 0.2:
                self.topics.pop(topic_id, None)
            else:
                self.topics[topic_id] = entry(topic_id, random.randrange(1000))
            self.unpublished.add(topic_id)

    def publish(self) -> None:
        self.number += 1
        self.writer.publish(CatalogHead(self.number, 0, len(self.topics)), self.topics, self.unpublished)
        self.unpublished = set()


@pytest.mark.parametrize("seed", range(8))
def test_readers_that_look_now_and_then_have_the_published_catalog(seed: int) -> None:
    disk, random = new_disk(), Random(seed)
    engine = Engine(disk, {n: entry(n, n) for n in range(1, 60)})
    readers = [(CatalogReader(disk, LAYOUT), often) for often in (1.0, 0.3, 0.02)]
    seen: list[dict[int, bytes]] = [{} for _ in readers]
    for _ in range(300):
        engine.change(random)
        engine.publish()
        if random.random() < 0.05:
            # The server is restarted, and continues the catalog.
            again = Engine(disk, engine.topics, engine.number)
            found = again.writer.load()
            assert found is not None
            assert (found.head.number, found.topics) == (engine.number, engine.topics)
            engine, again.unpublished = again, set()
        for place, (reader, often) in enumerate(readers):
            if random.random() < often:
                look = reader.look()
                assert look is not None
                assert look.head.number == engine.number
                assert reader.topics == engine.topics
                before = seen[place]
                assert look.changed >= {one for one in engine.topics if before.get(one) != engine.topics[one]}
                assert look.gone >= before.keys() - engine.topics.keys()
                assert not look.gone & engine.topics.keys()
                seen[place] = dict(engine.topics)
    assert readers[0][0].whole_reads == 1, f"seed {seed}"
    assert {one.topic_id for one in (read_catalog(disk, LAYOUT) or pytest.fail()).topics} == engine.topics.keys()


def test_few_changes_write_few_bytes_and_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_files, "CHANGE_FILES_MAX", 10)
    disk = new_disk()
    engine = Engine(disk, {n: entry(n, 5) for n in range(1, 3000)})
    engine.publish()
    whole = len(read_whole(disk, LAYOUT.catalog) or b"")
    for version in range(40):
        engine.topics[7] = entry(7, version)
        engine.unpublished.add(7)
        engine.publish()
        changes = disk.open(LAYOUT.catalog_changes(engine.number - 1))
        assert changes.size() * 100 < whole
        changes.close()
        assert len(disk.list_dir(LAYOUT.meta)) <= 22


@pytest.mark.parametrize("ending", range(4))
def test_stop_at_any_call_leaves_the_catalog_before_or_after(ending: int) -> None:
    def run(disk: FakeDisk, published: list[dict[int, bytes]]) -> None:
        random = Random(3)
        disk.make_dirs(LAYOUT.meta)
        engine = Engine(disk, {n: entry(n, n) for n in range(1, 10)})
        for _ in range(14):
            engine.change(random)
            published.append(dict(engine.topics))
            engine.publish()

    whole = new_disk()
    run(whole, [])
    for call in range(1 + ending, whole.call_count, 4):
        disk, published = FakeDisk(stop_before=call), list[dict[int, bytes]]()
        with pytest.raises(PowerCut):
            run(disk, published)
        survivor = disk.clone().crash(ENDINGS[ending], call)
        if not published or not survivor.exists(LAYOUT.catalog):
            continue
        found = read_encoded(survivor, LAYOUT)
        assert found is not None
        assert found.topics == published[found.head.number - 1]
        assert found.head.number >= len(published) - 1
        reader = CatalogReader(survivor, LAYOUT)
        assert reader.look() is not None
        engine = Engine(survivor, dict(found.topics), found.head.number)
        engine.writer.load()
        engine.unpublished = set()
        for version in range(3):
            engine.topics[77], engine.unpublished = entry(77, version), {77}
            engine.publish()
            look = reader.look()
            assert look is not None
            assert (look.changed, reader.topics) == ({77}, engine.topics)


def test_changes_of_another_history_of_the_folder_are_not_followed() -> None:
    disk = new_disk()
    engine = Engine(disk, {n: entry(n, n) for n in range(1, 60)})
    engine.publish()
    copy = disk.clone().crash(Survival.EVERYTHING)
    for version in (1, 2, 3):
        engine.topics[5], engine.unpublished = entry(5, version), {5}
        engine.publish()
    reader = CatalogReader(disk, LAYOUT)
    reader.look()
    # The folder is put back to the copy of it, file by file, and goes on otherwise under the same numbers.
    other = Engine(copy, {n: entry(n, n) for n in range(1, 60)}, 1)
    other.writer.load()
    for version in (11, 12, 13):
        other.topics[6], other.unpublished = entry(6, version), {6}
        other.publish()
    for name in copy.list_dir(LAYOUT.meta):
        replace_file(disk, f"{LAYOUT.meta}/{name}", read_whole(copy, f"{LAYOUT.meta}/{name}") or b"")
    look = reader.look()
    assert look is not None
    assert look.changed >= {5, 6}
    assert reader.topics == other.topics
    # A part of another history alone is left aside, too.
    engine = Engine(copy, {1: entry(1, 1)})
    engine.publish()
    assert copy.list_dir(LAYOUT.meta) == ["catalog"]


@pytest.mark.parametrize("at", [0, 9, 20, 30, 41, -1])
def test_damaged_changes_are_noticed(at: int) -> None:
    disk = new_disk()
    engine = Engine(disk, {n: entry(n, n) for n in range(1, 60)})
    engine.publish()
    engine.topics[5], engine.unpublished = entry(5, 700), {5}
    engine.publish()
    path = LAYOUT.catalog_changes(1)
    data = bytearray(read_whole(disk, path) or b"")
    data[at] ^= 1
    replace_file(disk, path, bytes(data))
    with pytest.raises(ValueError, match="changes behind catalog 1"):
        read_encoded(disk, LAYOUT)
    with pytest.raises(ValueError, match="changes behind catalog 1"):
        CatalogWriter(disk, LAYOUT).load()


def test_catalog_of_the_version_before_is_read_and_replaced() -> None:
    disk = new_disk()
    body = b"TPCAT001" + msgspec.msgpack.encode([CatalogHead(7, 9, 1, True, True), [msgspec.Raw(entry(5, 3))]])
    replace_file(disk, LAYOUT.catalog, body + xxh3_64_intdigest(body).to_bytes(8, "little"))
    found = read_catalog(disk, LAYOUT)
    assert found is not None
    assert (found.head.number, found.head.tracked, found.topics[0].name) == (7, True, "t5")
    reader = CatalogReader(disk, LAYOUT)
    assert reader.look() is not None
    engine = Engine(disk, {5: entry(5, 3)}, 7)
    engine.writer.load()
    engine.unpublished = set()
    engine.publish()
    assert (read_whole(disk, LAYOUT.catalog) or b"")[:8] == catalog.MAGIC
    look = reader.look()
    assert look is not None
    assert (look.head.number, look.changed, look.gone) == (8, set(), set())
