"""The comparison table of the README: each claim about topics is checked against the code."""

import re
from collections.abc import Callable

import msgspec
import pytest

from tests.unit.docs.pages import read, rows, section
from topics.api.operator_routes import OpsHandlers
from topics.model.router_rules import Guarantee, RouterRules
from topics.model.seq_ranges import Tombstone
from topics.model.settings import Settings
from topics.model.topic_config import Durability, TopicConfig
from topics.server import stream_routes
from topics.system.clock import SystemClock

TABLE = {cells[0]: cells[1:] for cells in rows(section(read("README.md"), "## Comparison"))}


def fields(kind: type) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)}


def routed(path: str) -> bool:
    return any(route.path == path for route in OpsHandlers(SystemClock(), stream_routes(Settings())).routes().all)


CLAIMS: dict[str, tuple[str, Callable[[], bool]]] = {
    "survives a power cut": ("yes, in class `fsync`", lambda: Durability("fsync") is Durability.FSYNC),
    "report to a reader that missed records": (
        "the exact range and the reason", lambda: fields(Tombstone) >= {"gap_from", "gap_to", "reason"}
    ),
    "queue with leases, retries, dead letters": (
        "yes, on the same records", lambda: fields(TopicConfig) >= {"lease_ms", "max_deliveries", "dead_letter"}
    ),
    "routing by the server": (
        "routers, exactly once if configured", lambda: RouterRules(guarantee=Guarantee("exactly_once")).exactly_once
    ),
    "atomic writes to several topics": ("transactions", lambda: routed("/v0/transactions")),
    "web console": ("yes, in the server", lambda: bool(OpsHandlers(SystemClock(), stream_routes(Settings())).console)),
}  # fmt: skip


@pytest.mark.parametrize("row", CLAIMS)
def test_a_claim_stands_on_something(row: str) -> None:
    said, holds = CLAIMS[row]
    assert TABLE[row][0] == said
    assert holds()


def test_the_table_is_whole_and_states_of_when_it_is() -> None:
    text = section(read("README.md"), "## Comparison")
    assert {len(cells) for cells in TABLE.values()} == {5}
    assert all(cell for cells in TABLE.values() for cell in cells)
    assert re.search(r"^As of \w+ 20\d\d, by the documentation of Kafka", text, re.MULTILINE)
