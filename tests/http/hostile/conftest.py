"""A server for each attack, and the report of all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.hostile.attacks import REPORT
from tests.http.live import LiveServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, pipeline="off") as live:
        yield live


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORT:
        terminalreporter.section("a well-behaved client beside attacks")
        for line in REPORT:
            terminalreporter.write_line(line)
