"""The reports of the benchmarks: ratios, verdicts and doubts follow from the measurements alone."""

from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.load import Result, Workload
from bench.report import Report, Results, Sheet, write_results

ONE = Workload("append-1@16", "append 1 record, 16 connections", 16, 1)
LONE = Workload("append-1@1", "append 1 record, 1 connection", 1, 1)


def result(rate: float, p50_ms: float = 0.1, generator: float = 0.5, others: float = 0.0) -> Result:
    return Result(rate, p50_ms, p50_ms * 2, generator, 1.0, others)


def quiet() -> Console:
    return Console(quiet=True)


def made(results: Results) -> str:
    return Report(results, quiet()).make("a machine", "a method")


def test_the_median_of_the_rounds_counts() -> None:
    results = Results((ONE,), 0)
    for rate in (100.0, 300.0, 200.0):
        results.add("topics-disk", ONE.key, result(rate))
    results.add("redis-everysec", ONE.key, result(400.0))
    assert results.rate("topics-disk", ONE.key) == 200.0
    assert results.ratio("topics-disk", "redis-everysec", ONE.key) == 0.5
    assert results.ratio("topics-disk", "nats", ONE.key) is None


@pytest.mark.parametrize(("ours", "verdict"), [(50.0, "Aims: 1 of 1 met."), (49.0, "Aims: 0 of 1 met.")])
def test_an_aim_is_met_from_its_ratio_on(ours: float, verdict: str) -> None:
    results = Results((ONE,), 0)
    results.add("topics-disk", ONE.key, result(ours))
    results.add("redis-everysec", ONE.key, result(100.0))
    text = made(results)
    assert verdict in text
    assert ("missed" in text) == (ours < 50.0)
    assert f"{ours / 100.0:.2f} (100)" in text


@pytest.mark.parametrize(("p50_ms", "verdict"), [(0.149, "1 of 1"), (0.15, "0 of 1")])
def test_the_lone_writer_is_judged_by_its_latency(p50_ms: float, verdict: str) -> None:
    results = Results((LONE,), 0)
    results.add("topics-disk", LONE.key, result(1.0, p50_ms))
    assert f"Aims: {verdict} met." in made(results)


def test_a_generator_without_time_left_is_reported() -> None:
    results = Results((ONE,), 0)
    results.add("topics-disk", ONE.key, result(1.0, generator=0.96))
    assert "measured itself, in: topics-disk append-1@16" in made(results)


def test_a_machine_that_was_not_quiet_is_reported() -> None:
    sheet = Sheet(quiet())
    sheet.noise([0.1, 0.5, 0.6])
    assert "in 2 of 3 measurements, 50% in the median" in sheet.text
    calm = Sheet(quiet())
    calm.noise([0.1, 0.2])
    assert calm.text == ""


def test_skipped_server_is_reported_with_its_reason() -> None:
    results = Results((ONE,), 0)
    results.add("topics-disk", ONE.key, result(1.0))
    results.left_out["NATS"] = "it is not installed"
    assert "Missing: NATS: it is not installed" in made(results)


def test_a_report_replaces_the_last_one_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    write_results("old\n", "x", "X")
    write_results("other", "y", "Y")
    write_results("### Table\n\nnew\n", "x", "X")
    assert (tmp_path / "results" / "x.md").read_text() == "# X\n\n## Table\n\nnew\n"
    assert (tmp_path / "results" / "y.md").read_text() == "# Y\n\nother\n"
