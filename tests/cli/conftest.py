"""A server for the commands of one file, and a client that checks it from outside."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import environment
from tests.http.live import LiveServer
from topics_client import Client


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def client(live: LiveServer) -> Iterator[Client]:
    with Client(live.url) as client:
        yield client


@pytest.fixture
def env(live: LiveServer, tmp_path: Path) -> dict[str, str]:
    """Of a command that talks to that server."""
    return environment(tmp_path, live.url)
