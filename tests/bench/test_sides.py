import json
from pathlib import Path

import pytest

from bench.protocols import Topics, with_key
from bench.sides import compare, launch_from, parse_row


def test_a_row_is_connections_and_records() -> None:
    row = parse_row("16x100")
    assert (row.connections, row.records, row.reads, len(row.sizes)) == (16, 100, False, 1)
    assert (parse_row("4x1v").records, len(parse_row("4x1v").sizes)) == (1, 41)


def test_a_row_may_have_keys() -> None:
    assert [parse_row(text).keyed for text in ("16x1", "16x1k", "16x1vk", "16x100k")] == [False, True, True, True]
    assert (parse_row("16x1vk").records, len(parse_row("16x1vk").sizes)) == (1, 41)
    head, _, body = with_key(Topics("disk").append("place", 2)).partition("\r\n\r\n")
    assert head.startswith("POST /v0/topics/place HTTP/1.1") and head.endswith(f": {len(body)}")
    said = json.loads(body)
    assert (said["idempotency_key"], said["idempotency_check"], len(said["records"])) == ("#" * 20, True, 2)


def test_a_row_may_have_many_in_flight() -> None:
    found = [(row.at_once, row.socket, row.keyed) for row in map(parse_row, ("1x1", "1x1p", "16x1w", "1x1pk"))]
    assert found == [(0, False, False), (16, False, False), (16, True, False), (16, False, True)]


@pytest.mark.parametrize("text", ["16", "x", "ax1", "1x", "1xk", "1xp"])
def test_a_row_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_row(text)


def test_each_turn_is_compared_with_the_one_beside_it() -> None:
    line = compare("16x1", [100.0, 90.0, 200.0], [110.0, 150.0, 50.0])
    assert line == "    16x1:         100 there,         110 here, ratio 1.10 (0.25 to 1.67)"


def test_a_checkout_is_served_from_its_own_sources(tmp_path: Path) -> None:
    launch = launch_from(tmp_path)(tmp_path / "data", 0)
    assert launch.env["PYTHONPATH"] == str(tmp_path / "src")
    assert launch.env["TOPICS_DATA_DIR"].startswith(str(tmp_path / "data"))
