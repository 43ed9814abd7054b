"""Spark's calls to the source, without a Spark and without a server."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from tests.unit.spark.folders import Folder
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.records import Record
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.arrow_slices import RECORD_DDL, SegmentSlicer
from topics.spark.connector import origins, record_reader
from topics.spark.connector.options import DataLossError, OptionError, read_options
from topics.spark.connector.origins import SeqSpan
from topics.spark.connector.record_reader import RawPage
from topics.spark.connector.source import TopicsDataSource, TopicsReader, TopicsStreamReader
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.segment_reader import NoColdFolderError, load_catalog
from topics.system.clock import SystemClock
from topics.testing import ManualClock, SeededEntropy
from topics_client import Gap
from topics_client.requests import Request

SCHEMA = StructType([StructField("seq", LongType(), False)])


class Place:
    """A data folder on the real disk, with an archive beside it."""

    def __init__(self, folder: Path, cold: bool = False, **options: object) -> None:
        self.layout = Layout(str(folder / "data"), str(folder / "cold") if cold else None)
        self.archive = str(folder / "archive")
        self.files = PosixFileSystem()
        self.folder = Folder(self.files, None, self.layout, **options)
        self.given = {"mode": "segments", "path": self.layout.root, "topic": "orders"}

    def fill(self, batches: int, each: int = 10, topic: str = "orders") -> None:
        """Seals so many segments."""
        for number in range(batches):
            self.folder.append(topic, *range(number * each, (number + 1) * each))
            self.folder.seal(topic)

    def run_pipeline(self) -> None:
        product = ArchiveProduct(self.files, self.archive, ArchiveRules(), SeededEntropy(1))
        made = Pipeline(self.files, self.layout, [product], InlineExecutor(self.files), self.folder.clock)
        while made.round():
            pass

    def reader(self, **options: str) -> TopicsReader:
        found = TopicsDataSource({**self.given, **options}).reader(SCHEMA)
        assert isinstance(found, TopicsReader)
        return found

    def stream(self, **options: str) -> TopicsStreamReader:
        found = TopicsDataSource({**self.given, "startingOffsets": "earliest", **options}).streamReader(SCHEMA)
        assert isinstance(found, TopicsStreamReader)
        return found


def seqs(reader: TopicsReader | TopicsStreamReader, pieces: object) -> list[int]:
    found = [seq for piece in pieces for batch in reader.read(piece) for seq in batch["seq"].to_pylist()]  # type: ignore[attr-defined]
    return sorted(found)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_read_of_files_fails_for_records_lost_in_a_crash(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.folder.append("orders", 1, 2, 3, 4)
    place.folder.seal()
    catalog = load_catalog(place.files, place.layout)
    [topic] = catalog.topics
    damaged = msgspec.structs.replace(catalog, topics=[msgspec.structs.replace(topic, lost=[(2, 3)])])
    monkeypatch.setattr(origins, "load_catalog", lambda fs, layout: damaged)
    with pytest.raises(DataLossError, match="records 2 to 3 are gone"):
        place.reader().partitions()
    assert len(place.reader(failOnDataLoss="false").partitions()) == 1


# Columns


def rows_of(place: Place, schema: str, **options: str) -> list[dict[str, object]]:
    reader = TopicsDataSource({**place.given, **options}).reader(struct_of(schema))
    assert isinstance(reader, TopicsReader)
    return [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]


def struct_of(columns: str) -> StructType:
    kinds = {"bigint": LongType(), "string": StringType(), "map": MapType(StringType(), StringType())}
    fields = [column.split(" ") for column in columns.split(", ")]
    optional = ("node", "tag", "meta")
    return StructType([StructField(name, kinds[kind], name in optional) for name, kind in fields])


def test_columns_that_nobody_requested_are_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fill(1)
    monkeypatch.setattr(SegmentSlicer, "_strings", lambda self, *given: pytest.fail("texts were copied"))
    epoch = place.folder.engine.info("orders").epoch
    assert rows_of(place, "seq bigint, epoch bigint") == [{"seq": seq, "epoch": epoch} for seq in range(1, 11)]
    with pytest.raises(pytest.fail.Exception):
        rows_of(place, "data string")


def test_filters_use_columns_that_are_not_requested(place: Place) -> None:
    for n in range(6):
        place.folder.append("orders", Record.of(n, tag="ab"[n % 2] + str(n)))
        place.folder.clock.advance(1000)  # type: ignore[attr-defined]
    place.folder.seal()
    found = rows_of(place, "data string", tagPrefix="a")
    assert found == [{"data": "0"}, {"data": "2"}, {"data": "4"}]


def test_chosen_columns_are_the_schema(place: Place) -> None:
    source = TopicsDataSource({**place.given, "columns": "data, seq,meta", "metaAs": "map"})
    assert source.schema() == "data string not null, seq bigint not null, meta map<string, string>"
    assert TopicsDataSource(place.given).schema() == RECORD_DDL


def test_headers_are_a_map_of_texts_where_that_is_requested(place: Place) -> None:
    meta = {"a": "x", "n": 12, "deep": {"b": [1, 2]}, "quoted": 'say "hi"'}
    place.folder.append("orders", Record.of(1, meta=meta), Record.of(2))
    place.folder.seal()
    [first, second] = rows_of(place, "meta map")
    assert dict(first["meta"]) == {"a": "x", "n": "12", "deep": '{"b":[1,2]}', "quoted": 'say "hi"'}  # type: ignore[call-overload]
    assert second["meta"] is None


def test_times_by_topic_bound_each_topic(place: Place) -> None:
    clock = place.folder.clock
    begun = clock.now_ms()
    for n in range(4):
        place.folder.append("orders", n)
        place.folder.append("other", n)
        clock.advance(1000)  # type: ignore[attr-defined]
    place.folder.seal()
    del place.given["topic"]
    times = {"startingTimestamp": f'{{"orders": {begun + 2000}}}', "endingTimestamp": f'{{"other": {begun + 1000}}}'}
    found = rows_of(place, "topic string, seq bigint", topics="orders,other", **times)
    assert sorted((str(row["topic"]), row["seq"]) for row in found) == [("orders", 3), ("orders", 4), ("other", 1)]
    with pytest.raises(OptionError, match="a time for topic missing"):
        rows_of(place, "seq bigint", topics="orders,other", startingTimestamp='{"missing": 1}')


# Micro-batches of a least size


def test_micro_batch_waits_for_its_least_records_and_no_longer_than_the_delay(place: Place) -> None:
    place.fill(1)
    stream = place.stream(minRecordsPerTrigger="15", maxTriggerDelay="60000")
    clock = ManualClock()
    stream._clock = clock
    start = stream.initialOffset()
    assert stream.latestOffset(start) == start
    clock.advance(59_000)
    assert stream.latestOffset(start) == start
    clock.advance(1_000)
    late = stream.latestOffset(start)
    assert late["orders"]["seq"] == 10
    place.fill(1)
    assert stream.latestOffset(late) == late
    place.fill(1)
    assert stream.latestOffset(late)["orders"]["seq"] == 30


def test_stream_that_reads_what_is_there_waits_for_nothing(place: Place) -> None:
    place.fill(1)
    stream = place.stream(minRecordsPerTrigger="15")
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(stream.initialOffset())["orders"]["seq"] == 10


# Segments that vanish between the plan and the read


def cap(place: Place) -> None:
    place.folder.put("orders", cap_records=21)
    place.folder.append("orders", 1)
    place.folder.checkpoint()


def drop(place: Place) -> None:
    place.folder.drop("orders")
    place.folder.checkpoint()


def make_again(place: Place) -> None:
    place.folder.drop("orders")
    place.fill(6)


Vanish = Callable[[Place], None]
VANISH = pytest.mark.parametrize(
    ("vanish", "message", "left"),
    [
        (cap, "records 1 to 10 are gone \\(cap or ttl\\)", range(41, 61)),
        (drop, "records 1 to 10 are gone \\(the topic was deleted\\)", ()),
        (make_again, "records 1 to 10 are gone \\(recreated\\)", ()),
    ],
)


@VANISH
def test_segments_that_went_after_the_plan_are_a_loss(place: Place, vanish: Vanish, message: str, left: range) -> None:
    place.fill(6)
    strict, lenient = place.reader(), place.reader(failOnDataLoss="false")
    pieces, others = strict.partitions(), lenient.partitions()
    vanish(place)
    with pytest.raises(DataLossError, match=message):
        seqs(strict, pieces)
    assert seqs(lenient, others) == list(left)


@VANISH
def test_segments_that_went_after_a_batch_of_a_stream_was_planned_are_a_loss(
    place: Place, vanish: Vanish, message: str, left: range
) -> None:
    place.fill(6)
    strict, lenient = place.stream(recordsPerPartition="10"), place.stream(failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, strict.getDefaultReadLimit())
    pieces, others = strict.partitions(start, end), lenient.partitions(start, end)
    assert len(pieces) == 6
    vanish(place)
    with pytest.raises(DataLossError, match=message):
        seqs(strict, pieces)
    assert seqs(lenient, others) == list(left)


def test_micro_batches_are_cut_by_bytes_also_when_a_query_goes_on_from_its_checkpoint(place: Place) -> None:
    for number in range(4):
        place.folder.append("orders", *["x" * 1000] * 10)
        place.folder.append("small", number)
        place.folder.seal()
    del place.given["topic"]
    given = {"topics": "orders,small", "bytesPerPartition": "12000"}
    stream = place.stream(**given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    pieces = stream.partitions(start, end)
    # 40 records of a little more than 1000 bytes, and four short ones that share the last task.
    assert [len(seqs(stream, [piece])) for piece in pieces] == [11, 11, 11, 11]
    again = place.stream(**given).partitions(start, end)
    assert [piece.spans for piece in again] == [piece.spans for piece in pieces]  # type: ignore[attr-defined]


def test_what_was_deleted_on_purpose_after_the_plan_is_not_a_loss(place: Place) -> None:
    place.fill(6)
    reader = place.reader()
    pieces = reader.partitions()
    place.folder.delete("orders", before_seq=31)
    place.folder.checkpoint()
    assert seqs(reader, pieces) == list(range(31, 61))


def test_a_segment_that_holds_both_what_was_lost_and_what_was_not_reports_the_loss(place: Place) -> None:
    place.folder.put("orders", cap_records=15)
    place.fill(2)
    reader = place.reader(startingOffsets='{"orders": 0}')
    with pytest.raises(DataLossError, match="records 1 to 5 are gone"):
        seqs(reader, reader.partitions())
    lenient = place.reader(startingOffsets='{"orders": 0}', failOnDataLoss="false")
    assert seqs(lenient, lenient.partitions()) == list(range(6, 21))


# Topics that are not there


def test_a_topic_that_is_not_there_is_an_error_unless_it_may_be_missing(place: Place) -> None:
    place.fill(1)
    for given in ({"topics": "orders,other"}, {"topics": "other"}):
        place.given.pop("topic", None)
        with pytest.raises(OptionError, match="other"):
            place.reader(**given).partitions()
        with pytest.raises(OptionError, match="failOnMissingTopic"):
            place.stream(**given).initialOffset()
    both = place.reader(topics="orders,other", failOnMissingTopic="false")
    assert seqs(both, both.partitions()) == list(range(1, 11))


def test_a_pattern_that_matches_nothing_warns(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.fill(1)
    place.given.pop("topic")
    assert list(place.reader(topicPattern="x*").partitions()) == []
    [reported] = caplog.records
    assert (reported.message, vars(reported)["requested"]) == ("no topic is there to be read", "x*")


def test_a_name_alone_may_have_a_comma(place: Place) -> None:
    options = place.reader(topic="a, b")._options
    assert options.topics == ("a, b",)


# The cold tier


def test_forgetting_where_the_cold_tier_is_names_the_option(tmp_path: Path) -> None:
    place = Place(tmp_path, cold=True, hot_retain_segments=0)
    place.fill(2)
    reader = place.reader()
    pieces = reader.partitions()
    place.folder.relocate("orders")
    for found in (pieces, place.reader().partitions()):
        with pytest.raises(NoColdFolderError, match="option coldDir"):
            seqs(reader, found)
    reported = place.reader(coldDir=str(tmp_path / "cold"))
    assert seqs(reported, reported.partitions()) == list(range(1, 21))


def test_a_batch_that_was_planned_with_the_server_is_not_passed_over_without_it(place: Place) -> None:
    """A query that goes on with files alone repeats the batch that was under way, which may reach beyond them."""
    place.fill(2)
    place.folder.append("orders", *range(10))
    place.folder.checkpoint()
    strict, lenient = place.stream(), place.stream(failOnDataLoss="false")
    epoch = place.folder.engine.info("orders").epoch
    start, end = {"orders": {"epoch": epoch, "seq": 10}}, {"orders": {"epoch": epoch, "seq": 30}}
    pieces = strict.partitions(start, end)
    with pytest.raises(DataLossError, match="records 21 to 30 are gone \\(no segment has them"):
        seqs(strict, pieces)
    assert seqs(lenient, pieces) == list(range(11, 21))
    place.folder.seal("orders")
    assert seqs(strict, pieces) == list(range(11, 31))
    place.folder.delete("orders", before_seq=31)
    place.folder.checkpoint()
    assert seqs(strict, pieces) == []


# Records that became too old since the last checkpoint


class Aged:
    """Two segments and a clock for readers, by which ten records of the first are too old, and ten are not."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = place.folder.clock
        assert isinstance(clock, ManualClock)
        place.folder.put("orders", ttl_ms=1000)
        place.folder.append("orders", *range(10))
        clock.advance(600)
        place.folder.append("orders", *range(10))
        place.folder.seal("orders")
        place.fill(1)
        place.run_pipeline()
        self.stream = place.stream(startingOffsets='{"orders": 0}', recordsPerPartition="15")
        self.start = self.stream.initialOffset()
        self.end = self.stream.latestOffset(self.start, self.stream.getDefaultReadLimit())
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: clock.now_ms())
        assert seqs(self.stream, self.pieces()) == list(range(1, 31))
        clock.advance(600)

    def pieces(self) -> object:
        return self.stream.partitions(self.start, self.end)


def test_records_that_became_too_old_before_they_were_read_are_a_loss(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged = Aged(place, monkeypatch)
    with pytest.raises(DataLossError, match="records 1 to 10 are gone \\(ttl\\)"):
        seqs(aged.stream, aged.pieces())
    lenient = place.stream(failOnDataLoss="false")
    assert seqs(lenient, lenient.partitions(aged.start, aged.end)) == list(range(11, 31))
    # A reader that begins with the first live record has lost nothing.
    fresh = place.stream()
    begin = fresh.initialOffset()
    assert begin["orders"]["seq"] == 10
    assert seqs(fresh, fresh.partitions(begin, aged.end)) == list(range(11, 31))
    assert seqs(place.reader(), place.reader().partitions()) == list(range(11, 31))


def test_what_became_too_old_is_asked_of_the_server_where_there_is_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes by the server's clock, and reports the loss like every other."""
    aged, asked = Aged(place, monkeypatch), []

    class Server:
        def send(self, request: Request[RawPage]) -> RawPage:
            asked.append(request.target)
            gap = Gap(gap_from=1, gap_to=10, missed_estimate=10, reason="ttl", earliest_seq=11, head_seq=30)
            return RawPage(records=[], next_from_seq=10, tombstone=gap)

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(record_reader, "open_client", lambda access: Server())
    options = read_options({**place.given, "mode": "auto", "url": "http://nobody"}, streaming=True)
    spans = [SeqSpan("orders", aged.end["orders"]["epoch"], 0, 30)]
    with record_reader.SpanReader(options) as strict, pytest.raises(DataLossError, match="records 1 to 10 are gone"):
        list(strict.read(spans))
    with record_reader.SpanReader(msgspec.structs.replace(options, fail_on_loss=False)) as lenient:
        found = [seq for batch in lenient.read(spans) for seq in batch["seq"].to_pylist()]
    assert found == list(range(11, 31))
    assert len(asked) == 2


def test_what_was_deleted_does_not_become_too_old(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    aged = Aged(place, monkeypatch)
    place.folder.clock.jump(-600)  # type: ignore[attr-defined]
    place.folder.delete("orders", before_seq=11)
    place.folder.checkpoint()
    place.folder.clock.jump(600)  # type: ignore[attr-defined]
    assert seqs(aged.stream, aged.pieces()) == list(range(11, 31))


def test_the_archive_has_what_became_too_old(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    Aged(place, monkeypatch)
    assert archived(place) == list(range(1, 31))


# The archive


def archived(place: Place, **options: str) -> list[int]:
    reader = place.reader(archive=place.archive, **options)
    return seqs(reader, reader.partitions())


def evict(place: Place, keep: int) -> None:
    place.folder.put("orders", cap_records=keep)
    place.folder.append("orders", 1)
    place.folder.seal("orders")


def test_a_gap_between_what_was_archived_and_the_log_is_a_loss(place: Place) -> None:
    place.fill(3)
    place.run_pipeline()
    place.fill(3)
    evict(place, 15)
    with pytest.raises(DataLossError, match="records 31 to 46 are gone"):
        archived(place)
    assert archived(place, failOnDataLoss="false") == [*range(1, 31), *range(47, 62)]


def test_a_gap_inside_of_what_was_archived_is_a_loss(place: Place) -> None:
    place.fill(3)
    place.run_pipeline()
    place.fill(2)
    evict(place, 5)
    place.fill(1)
    place.run_pipeline()
    evict(place, 1)
    with pytest.raises(DataLossError, match="records 31 to 56 are gone"):
        archived(place)


def test_a_history_without_a_gap_is_read_whole(place: Place) -> None:
    place.fill(5)
    place.run_pipeline()
    evict(place, 15)
    assert archived(place) == list(range(1, 52))


def test_what_was_deleted_on_purpose_is_no_gap_of_the_archive(place: Place) -> None:
    place.fill(2)
    place.run_pipeline()
    place.fill(2)
    place.folder.delete("orders", before_seq=31)
    place.folder.checkpoint()
    place.run_pipeline()
    evict(place, 3)
    assert archived(place) == [*range(31, 42)]


def test_what_was_lost_before_there_was_an_archive_is_where_it_begins(place: Place) -> None:
    place.fill(4)
    evict(place, 15)
    place.run_pipeline()
    evict(place, 3)
    assert archived(place) == list(range(27, 43))
