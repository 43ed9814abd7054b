"""`topics.open`: an engine in this process, on a real folder."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics
from topics.embedded import EmbeddedEngine
from topics.model.errors import FolderBusyError, InvalidRequestError, ShuttingDownError, TopicNotFoundError
from topics_client import NewRecord, TagMatch


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedEngine]:
    with topics.open(tmp_path / "data") as opened:
        yield opened


def test_appended_records_are_read_back_in_order(log: EmbeddedEngine) -> None:
    first = log.append("orders", {"order": 1}, tag="order-1", node="a", meta={"k": "v"})
    assert (first.first_seq, first.created) == (1, True)
    many = log.append_many("orders", [2, NewRecord(3, tag="three")])
    assert (many.first_seq, many.last_seq, many.count) == (2, 3, 2)
    page = log.read("orders")
    assert [(record.seq, record.data, record.tag) for record in page] == [
        (1, {"order": 1}, "order-1"), (2, 2, None), (3, 3, "three"),
    ]  # fmt: skip
    assert (page.records[0].node, page.records[0].meta) == ("a", {"k": "v"})
    assert (len(page), page.next_from_seq, page.head_seq, page.caught_up, page.gap) == (3, 3, 3, True, None)
    assert isinstance(page.records[0], topics.Record)


def test_a_read_continues_where_the_last_one_ended(log: EmbeddedEngine) -> None:
    log.append_many("t", range(5))
    page = log.read("t", limit=2)
    assert ([record.data for record in page], page.caught_up) == ([0, 1], False)
    assert [record.data for record in log.read("t", page.next_from_seq)] == [2, 3, 4]


def test_records_survive_closing_and_opening_the_folder(tmp_path: Path) -> None:
    with topics.open(str(tmp_path)) as log:
        log.append("t", "kept", config={"durability": "fsync"})
    with topics.open(tmp_path, wal_shards=2) as log:
        assert [record.data for record in log.read("t")] == ["kept"]
        assert log.append("t", "next").first_seq == 2


def test_a_second_open_of_a_folder_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    with topics.open(tmp_path), pytest.raises(FolderBusyError):
        topics.open(tmp_path)
    topics.open(tmp_path).close()


def test_a_gap_reports_which_records_a_cap_evicted(log: EmbeddedEngine) -> None:
    log.put_topic("recent", {"cap_records": 2})
    log.append_many("recent", range(5))
    page = log.read("recent")
    assert page.gap is not None
    assert (page.gap.gap_from, page.gap.gap_to, page.gap.reason) == (1, 3, "cap")
    assert [record.data for record in page] == [3, 4]


def test_records_are_deleted_by_seq_and_by_tag(log: EmbeddedEngine) -> None:
    log.append_many("t", [NewRecord(n, tag=tag) for n, tag in enumerate(("a1", "a2", "b", "c"))])
    assert log.delete("t", match=TagMatch("a", prefix=True)).deleted == 2
    assert log.delete("t", match="b").deleted == 1
    assert log.delete("t", before_seq=5).deleted == 1
    with pytest.raises(InvalidRequestError):
        log.delete("t")


def test_topics_are_created_listed_and_deleted(log: EmbeddedEngine) -> None:
    assert log.put_topic("jobs", {"type": "queue"}).created
    log.append("orders", 1)
    assert [info.topic for info in log.topics()] == ["jobs", "orders"]
    assert [info.topic for info in log.topics("or")] == ["orders"]
    assert log.topic("orders").count == 1
    assert log.delete_topic("orders").deleted
    with pytest.raises(TopicNotFoundError):
        log.topic("orders")


def test_refusals_are_typed_errors(log: EmbeddedEngine) -> None:
    with pytest.raises(TopicNotFoundError):
        log.read("missing")
    with pytest.raises(TopicNotFoundError):
        log.append("missing", 1, create=False)
    with pytest.raises(InvalidRequestError, match="unknown field"):
        log.put_topic("t", {"cap_recordz": 1})


def test_an_idempotency_key_appends_once(log: EmbeddedEngine) -> None:
    assert not log.append("t", 1, idempotency_key="k").deduped
    assert log.append("t", 1, idempotency_key="k").deduped
    assert len(log.read("t")) == 1


def test_calls_from_many_threads_append_every_record(log: EmbeddedEngine) -> None:
    threads = [threading.Thread(target=lambda: [log.append("t", n) for n in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.data for record in log.read("t")) == sorted([*range(20)] * 4)


def test_a_closed_engine_refuses_calls_and_closes_again(tmp_path: Path) -> None:
    log = topics.open(tmp_path)
    log.close()
    log.close()
    with pytest.raises(ShuttingDownError):
        log.append("t", 1)


def test_an_unknown_option_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        topics.open(tmp_path, wal_shardz=1)
