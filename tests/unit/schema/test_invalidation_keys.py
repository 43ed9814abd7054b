from typing import Any

import pytest

from topics.schema import invalidation_keys
from topics.schema.invalidation_keys import Template, Touched, touched_by
from topics_protocol.touch_keys import (
    Encoding,
    encode_argument,
    key_id,
    membership_key,
    projection_key,
    table_key,
    template_id,
    template_key,
    watch_key,
)

TODOS = "03d5826f0bf1e3e7"


def test_keys_are_those_that_every_client_computes() -> None:
    assert table_key("public.todos") == "feadeb84d447fd63"
    assert table_key("public.posts") == "0266aa40b9d08dc8"
    assert table_key("posts") == "8c646d3dd6bc68f4"
    assert template_id("public.todos", ["tenantId", "status"]) == TODOS
    assert template_key(TODOS) == "a440dcf9d1c07171"
    assert watch_key(TODOS, ["open", "t1"]) == "0af6023939b30f26"
    assert membership_key(TODOS, ["open", "t1"]) == "a7b1b1fd3cfa6ed1"
    assert projection_key(TODOS, "title", ["open", "t1"]) == "0848fb073b348b65"


def test_keys_of_recorded_conversations() -> None:
    by_user = template_id("posts", ["tenantId", "userId"])
    assert by_user == "940145c39e0c6eca"
    assert watch_key(by_user, ["t1", "123"]) == "c385bc18a683a909"
    assert watch_key(by_user, ["t1", "456"]) == "d5990f95976a97fb"
    by_tenant = template_id("posts", ["tenantId"])
    assert by_tenant == "0af3814da0aea55f"
    assert membership_key(by_tenant, ["t1"]) == "998c7dcd3c0ca6c5"


def test_the_id_of_a_key() -> None:
    assert key_id("feadeb84d447fd63") == 0xD447FD63
    assert key_id("FEADEB84D447FD63") == 0xD447FD63
    assert key_id("feadeb84_447fd63") != key_id("feadeb84d447fd63")
    assert 0 <= key_id("any text") < 2**32


@pytest.mark.parametrize(
    ("value", "encoding", "argument"),
    [
        ("open", "string", "open"),
        (5, "string", None),
        (True, "bool", "true"),
        (1, "bool", None),
        (5, "int64", "5"),
        (5.0, "int64", "5"),
        ("-7", "int64", "-7"),
        ("--7", "int64", None),
        ("٣", "int64", None),
        (2**63, "int64", None),
        (True, "int64", None),
        (None, "int64", None),
        ("2026-03-25T12:00:00+02:00", "datetime", "2026-03-25T10:00:00.000Z"),
        (1774432800000, "datetime", "2026-03-25T10:00:00.000Z"),
        ("soon", "datetime", None),
        ("aGk=", "bytes", "aGk="),
        ([], "bytes", None),
    ],
)
def test_arguments(value: Any, encoding: Encoding, argument: str | None) -> None:
    assert encode_argument(value, encoding) == argument


def touched(change: dict[str, Any], templates: list[Template], most: int) -> tuple[int, Touched]:
    """The number of units that the keys of a change take, and the keys."""
    units, work = 0, touched_by(change, templates, False, most)
    while True:
        try:
            next(work)
            units += 1
        except StopIteration as end:
            return units, end.value


def changed_row(fields: int) -> dict[str, Any]:
    row = {f"f{number}": str(number) for number in range(fields)}
    before = {name: value + " before" for name, value in row.items()}
    return {"type": "posts", "value": row, "old_value": before, "headers": {"operation": "update"}}


def test_keys_beyond_the_budget_are_counted_and_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = [Template.of("posts", {f"f{number}": "string"}) for number in range(100)]
    for name in ("watch_key", "membership_key", "projection_key"):
        monkeypatch.setattr(invalidation_keys, name, None)
    _, found = touched(changed_row(100), templates, 2_000)
    assert (found.fine, found.coarse) == ([], templates) and found.dropped > 2_000


def test_the_keys_of_a_row_are_computed_in_units() -> None:
    templates = [Template.of("posts", {f"f{number}": "string"}) for number in range(200)]
    units, found = touched(changed_row(200), templates, 10**9)
    assert len(found.fine) == 200 * 2 * (2 + 200)
    assert units >= len(found.fine) // 1_000


def test_templates_that_find_no_row_are_looked_through_in_units() -> None:
    templates = [Template.of("posts", {f"g{number}": "string"}) for number in range(10_000)]
    units, found = touched(changed_row(3), templates, 2_000)
    assert not found.fine and not found.coarse and units >= 100
