"""What importing the client brings along: little, and nothing of the server."""

import subprocess
import sys

import pytest

# What costs more to import than the client itself, or belongs to the server.
NEVER = ("httpx", "uvloop", "obstore", "cryptography", "xxhash", "prometheus_client", "rich", "cyclopts")
LATER = ("asyncio", "ssl", "websockets", "email", "http", "gzip", "concurrent", "multiprocessing")
OURS = {"model", "system"}


def imported(code: str) -> set[str]:
    shown = "import sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", f"{code}; {shown}"], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_the_client_imports_little() -> None:
    found = imported("import topics_client")
    assert {name.split(".")[0] for name in found} & {*NEVER, *LATER} == set()
    assert {name.split(".")[1] for name in found if name.startswith("topics.")} == OURS
    assert {name for name in found if name.startswith("topics_client._async")} == set()
    assert {name for name in found if name.startswith("topics_protocol.")} == {
        f"topics_protocol.{name}" for name in ("v0", "queues", "transactions", "watch")
    }


@pytest.mark.parametrize("name", ["AsyncClient", "AsyncSocket", "Socket"])
def test_what_comes_later_brings_nothing_of_the_server(name: str) -> None:
    found = imported(f"from topics_client import {name}")
    assert {one.split(".")[0] for one in found} & set(NEVER) == set()
    assert {one.split(".")[1] for one in found if one.startswith("topics.")} == OURS


def test_a_name_that_is_not_there_is_no_import() -> None:
    import topics_client

    with pytest.raises(AttributeError, match="Nothing"):
        topics_client.Nothing  # noqa: B018
