"""Importing the client loads few modules and none of the server; `topics serve` loads none of the client."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import topics
import topics_client
import topics_protocol
from topics.embedded import open_folder
from topics.engine.engine import Engine

# Modules that cost more to import than the client itself, or belong to the server.
NEVER = ("httpx", "uvloop", "obstore", "cryptography", "xxhash", "prometheus_client", "rich", "cyclopts")
LATER = ("asyncio", "ssl", "websockets", "email", "http", "gzip", "concurrent", "multiprocessing")


def imported(code: str) -> set[str]:
    shown = "import sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", f"{code}; {shown}"], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def packages(found: set[str]) -> set[str]:
    return {name.split(".")[0] for name in found}


def test_package_imports_no_module_before_a_name_is_used() -> None:
    found = imported("import topics_client; dir(topics_client)")
    assert {name for name in found if name.startswith("topics")} == {"topics_client"}
    assert packages(found) & {"msgspec", "socket", "httptools", "logging", *NEVER, *LATER} == set()


def test_errors_are_imported_without_a_client() -> None:
    found = imported(
        "from topics_client import ApiError, NotFound; import topics_client; topics_client.errors.Throttled"
    )
    assert {name for name in found if name.startswith("topics_client.")} == {"topics_client.errors"}


def test_the_client_imports_little() -> None:
    found = imported("from topics_client import Client")
    assert packages(found) & {*NEVER, *LATER, "logging"} == set()
    assert len({name for name in found if name.startswith("topics")}) <= 50
    assert "topics" not in packages(found)
    assert {name for name in found if name.startswith("topics_client._async")} == set()
    assert {name for name in found if name.startswith("topics_protocol.")} == {
        f"topics_protocol.{name}"
        for name in ("config", "records", "v0", "queues", "schedules", "transactions", "watch")
    }


@pytest.mark.parametrize("name", ["AsyncClient", "AsyncSocket", "Socket"])
def test_what_comes_later_brings_nothing_of_the_server(name: str) -> None:
    found = imported(f"from topics_client import {name}")
    assert packages(found) & set(NEVER) == set()
    assert "topics" not in packages(found)


def test_every_module_of_the_client_imports_without_the_server() -> None:
    names = [module.name for module in pkgutil.walk_packages(topics_client.__path__, "topics_client.")]
    assert "topics_client._async.websocket" in names and "topics_client._sync.websocket" in names
    assert "topics" not in packages(imported(f"import {', '.join(names)}"))


def test_touch_keys_are_computed_without_the_server() -> None:
    keys = "topics_client.TouchTemplate('posts', {'id': 'int64'}).watch_key(id=1)"
    assert "topics" not in packages(imported(f"import topics_client; {keys}"))


def test_every_module_of_the_protocol_imports_neither_server_nor_client() -> None:
    names = [module.name for module in pkgutil.walk_packages(topics_protocol.__path__, "topics_protocol.")]
    assert {"topics", "topics_client"} & packages(imported(f"import {', '.join(names)}")) == set()


def test_serve_imports_nothing_of_the_client() -> None:
    found = imported("import topics.cli, topics.cli.serve, topics.server")
    assert {"topics.server", "topics_protocol.v0"} <= found
    assert "topics_client" not in packages(found)


def test_the_package_loads_what_is_used_and_no_more() -> None:
    assert {name for name in imported("import topics") if name.startswith("topics")} == {"topics", "topics_protocol"}
    assert "topics.engine.engine" not in imported("from topics import Client")
    assert "topics_client" not in packages(imported("from topics import Engine, Record, open"))


def test_the_package_gives_what_users_need() -> None:
    assert set(topics.__all__) == {"AsyncClient", "Client", "Engine", "Record", "__version__", "open"}
    assert set(topics.__all__) <= set(dir(topics))
    assert topics.Client is topics_client.Client and topics.AsyncClient is topics_client.AsyncClient
    assert topics.Record is topics_client.Record
    assert topics.Engine is Engine and topics.open is open_folder
    assert topics.__version__ == topics_protocol.__version__
    with pytest.raises(AttributeError, match="Nothing"):
        topics.Nothing  # noqa: B018


def test_public_names_are_listed_where_type_checkers_and_imports_look() -> None:
    tree = ast.parse(Path(topics_client.__file__).read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = {
        (node.module, name.name) for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names
    }
    assert imports == {(module, name) for name, module in topics_client._HOME.items()}
    assert sorted(topics_client._HOME) == sorted(topics_client.__all__)
    assert all(getattr(topics_client, name).__name__ for name in topics_client.__all__ if name != "StreamLoop")


def test_a_name_that_is_not_there_is_no_import() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        topics_client.Nothing  # noqa: B018
