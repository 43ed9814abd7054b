"""The option `consumer` of the connector: cursors that show on the server what a query has processed."""

import logging
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from topics.spark.connector import progress
from topics.spark.connector.options import OptionError, ReadOptions, offset, read_options
from topics.spark.connector.progress import ConsumerCommits
from topics_client import Client


def stream(url: str, **options: str) -> ReadOptions:
    return read_options({"url": url, "topicPattern": "*", "consumer": "warehouse", **options}, streaming=True)


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({}, False, "consumer is for streams"),
        ({"mode": "segments", "path": "/data"}, True, "commits cursors to a server"),
        ({"path": "/data"}, True, "commits cursors to a server"),
        ({"consumer": "a/b"}, True, "option consumer is 'a/b'"),
        ({"consumer": "x" * 129}, True, "option consumer is"),
    ],
)
def test_consumer_is_refused_where_it_could_not_commit(given: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options({"topic": "orders", "consumer": "warehouse", **given}, streaming=streaming)


def test_commits_follow_the_offsets_and_skip_what_did_not_move(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        epochs = {}
        for topic in ("a", "b"):
            client.append_many(topic, range(5))
            epochs[topic] = client.get_topic(topic).epoch
        commits = ConsumerCommits(stream(live.url))
        commits.commit({topic: offset(epoch, 2) for topic, epoch in epochs.items()})
        assert [one.seq for one in client.all_consumers()] == [2, 2]
        client.commit_consumer("b", "warehouse", 1, force=True)
        client.delete_consumer("a", "warehouse")
        commits.commit({"a": offset(epochs["a"], 4), "b": offset(epochs["b"], 2)})
        assert {one.topic: one.seq for one in client.all_consumers()} == {"a": 4, "b": 1}


def test_topic_that_is_gone_does_not_keep_others_from_being_committed(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        client.append_many("b", range(5))
        client.append_many("c", range(5))
        epoch, gone = client.get_topic("b").epoch, client.get_topic("c").epoch
        client.delete_topic("c")
        client.append_many("c", range(5))
        ConsumerCommits(stream(live.url)).commit({"a": offset(1, 3), "b": offset(epoch, 3), "c": offset(gone, 3)})
        found = {one.topic: one.seq for one in client.all_consumers()}
        assert found["b"] == 3
        assert found.get("c", 0) == 0, "the offset is of an earlier topic of the name"


def test_of_many_topics_each_has_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_COMMITS_MAX", 2)
    with LiveServer(tmp_path) as live, Client(live.url) as client:
        epochs = {}
        for topic in "abcde":
            client.append_many(topic, range(9))
            epochs[topic] = client.get_topic(topic).epoch
        commits = ConsumerCommits(stream(live.url))
        for seq in range(1, 4):
            commits.commit({topic: offset(epoch, seq) for topic, epoch in epochs.items()})
        assert {one.topic: one.seq for one in client.all_consumers()} == {"a": 3, "b": 1, "c": 2, "d": 2, "e": 3}


def test_server_that_is_away_does_not_fail_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_COMMIT_S", 0.0)
    with LiveServer(tmp_path) as live:
        url = live.url
    with caplog.at_level(logging.WARNING):
        ConsumerCommits(stream(url)).commit({"orders": offset(1, 3)})
    assert "consumer commit failed" in caplog.text
