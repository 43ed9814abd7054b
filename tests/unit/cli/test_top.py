"""Values that the live screen and the measure compute from metrics."""

from typing import Any

from topics.cli.monitor import Look, look_at, span_of, timed, view_of
from topics.testing import ManualClock


def metrics(heads: dict[str, int], requests: int, **more: Any) -> dict[str, Any]:
    def series(name: str, values: dict[str, int]) -> list[dict[str, Any]]:
        return [{"name": name, "labels": {"topic": topic}, "value": float(value)} for topic, value in values.items()]

    return {
        "topics_topics": float(len(heads)),
        "topics_http_requests_total": float(requests),
        "topics_topic_head_seq": series("topics_topic_head_seq", heads),
        "topics_topic_records_live": series("topics_topic_records_live", heads),
        "topics_topic_bytes_live": series("topics_topic_bytes_live", {name: 10 * n for name, n in heads.items()}),
        "topics_topic_queue_ready": series("topics_topic_queue_ready", {"jobs": 3}),
        **more,
    }


def two_looks() -> tuple[Look, Look]:
    return look_at(metrics({"a": 5, "jobs": 1}, 10), 100.0), look_at(metrics({"a": 5, "jobs": 21, "new": 4}, 30), 102.0)


def test_rates_are_what_changed_between_two_looks() -> None:
    view = view_of(*two_looks(), "", "rate")
    assert [(row[0], row[3]) for row in view.rows] == [("jobs", 10.0), ("new", 2.0), ("a", 0.0)]
    assert dict(view.server)["requests/s"] == "10"
    assert view.rows[0][4] == 3 and view.rows[1][4] == ""


def test_orders_and_prefixes() -> None:
    assert [row[0] for row in view_of(*two_looks(), "", "name").rows] == ["a", "jobs", "new"]
    assert [row[0] for row in view_of(*two_looks(), "", "bytes").rows] == ["jobs", "a", "new"]
    assert [row[0] for row in view_of(*two_looks(), "n", "rate").rows] == ["new"]


def test_a_server_that_was_started_anew_does_not_run_backwards() -> None:
    before, now = look_at(metrics({"a": 50}, 1000), 0.0), look_at(metrics({"a": 1}, 3), 1.0)
    view = view_of(before, now, "", "rate")
    assert view.rows[0][3] == 0.0
    assert dict(view.server)["requests/s"] == "0"


def test_trouble_is_shown_only_where_there_is_some() -> None:
    calm = view_of(*two_looks(), "", "rate")
    assert not any(name.isupper() for name, _ in calm.server)
    troubled = look_at(metrics({}, 0, topics_wal_read_only=1.0, topics_pressure=0.85, topics_throttle_level=3.0), 1.0)
    view = view_of(look_at({}, 0.0), troubled, "", "rate")
    assert dict(view.server)["READ ONLY SHARDS"] == "1"
    assert dict(view.server)["pressure"] == "85% (deferring)"


def test_a_measure_counts_what_was_done_in_its_time() -> None:
    clock = ManualClock()
    calls = []

    def call() -> int:
        calls.append(1)
        clock.advance(50)
        return 10

    measured = timed("x", call, 1.0, 200, clock)
    assert len(calls) == 21  # Once to warm up.
    assert (round(measured.requests_per_s), round(measured.records_per_s)) == (20, 200)
    assert round(measured.bytes_per_s) == 40_000
    assert (measured.p50_ms, measured.p99_ms) == (50.0, 50.0)


def test_bench_seconds_without_a_unit_are_seconds() -> None:
    assert [span_of(text) for text in ("3", "0.5", "3s", "200ms", "1m")] == [3.0, 0.5, 3.0, 0.2, 60.0]
