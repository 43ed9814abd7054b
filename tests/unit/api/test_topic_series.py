"""Series by topic: the same text as the library's, only sooner."""

import json

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.conftest import append, open_engine, put
from topics.api.metrics import ServerState, Snapshot, TopicSeries, are_truncated, as_text, series_of
from topics.engine.engine import Engine
from topics.model.topic_config import TopicType


def parsed(text: str) -> dict[str, dict[str, float]]:
    """The values by topic of each metric, as a reader of the format finds them."""
    return {metric.name: values(metric) for metric in text_string_to_metric_families(text)}


def values(metric: Metric) -> dict[str, float]:
    return {sample.labels["topic"]: sample.value for sample in metric.samples}


@pytest.fixture
def engine() -> Engine:
    engine = open_engine()
    put(engine, "q", type=TopicType.QUEUE)
    append(engine, "q", 1, 2)
    append(engine, "log", 1, 2, 3)
    engine.consumers.put(engine.existing("log"), "billing", 1, "key", lambda outcome: None)
    return engine


def test_text_and_metrics_report_the_same(engine: Engine) -> None:
    series = series_of(engine)
    found = parsed(b"".join(as_text(series)).decode())
    for one in series:
        samples = json.loads(b"[%b]" % b"".join(one.json_pieces()))
        assert {sample["labels"]["topic"]: sample["value"] for sample in samples} == found[one.name]
        assert {sample["name"] for sample in samples} == ({one.name} if one.topics else set())
    assert found["topics_topic_head_seq"] == {"q": 2.0, "log": 3.0}
    assert found["topics_topic_queue_ready"] == {"q": 2.0}
    assert found["topics_consumer_lag_records"] == {"log": 2.0}
    assert b'topics_consumer_lag_records{topic="log",consumer="billing"} 2.0' in b"".join(as_text(series))


@pytest.mark.parametrize("name", ["plain", 'a "quoted" one', "back\\slash", "two\nlines", "\\n", "größer", "a}b,c=d"])
@pytest.mark.parametrize("value", [0, 7, 1_000_000, 123_456_789_012, 2**60])
def test_any_name_and_any_number_is_read_back(name: str, value: int) -> None:
    series = TopicSeries("topics_topic_head_seq", "Highest assigned seq.", [name], [value])
    assert parsed(b"".join(as_text([series])).decode()) == {"topics_topic_head_seq": {name: float(value)}}


def test_a_scrape_has_every_metric_once_in_both_forms(engine: Engine) -> None:
    snapshot = Snapshot(ServerState(ready=True, recovery_progress=1.0, uptime_ms=0), engine, None)
    families = list(text_string_to_metric_families(snapshot.text().decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert names.index("topics_topic_metrics_truncated") == len(names) - len(series_of(engine)) - 1
    assert b'"topics_topic_queue_dead_lettered":[{"name":' in snapshot.json()


def test_the_first_topics_by_name_have_series(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not are_truncated(engine)
    monkeypatch.setattr("topics.api.metrics.TOPIC_SERIES_MAX", 1)
    assert are_truncated(engine)
    assert series_of(engine)[0].topics == ["log"]
    assert b"".join(as_text(series_of(engine))).count(b"{") == 6


def test_many_topics_are_reported_piece_by_piece() -> None:
    topics, values = [f"topic-{number}" for number in range(600)], list(range(600))
    series = TopicSeries("topics_topic_head_seq", "Highest assigned seq.", topics, values)
    assert len(list(series.text_pieces())) == 4
    assert json.loads(b"[%b]" % b"".join(series.json_pieces()))[599]["value"] == 599
    assert parsed(b"".join(series.text_pieces()).decode())["topics_topic_head_seq"]["topic-599"] == 599.0
