"""The page of the client: its examples run against a real server, and it names everything there is."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import topics_client
from tests.http.live import LiveServer
from tests.unit.docs.pages import blocks, rows, section
from tools.site_reference import built
from topics_client import Client, ClientOptions, RetryPolicy

PAGE = built("docs/client.md")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = blocks(PAGE, "python")
    assert len(examples) > 10
    with LiveServer(tmp_path) as server:
        monkeypatch.setenv("TOPICS_URL", server.url)
        names: dict[str, Any] = {}
        try:
            for number, example in enumerate(examples, 1):
                exec(compile(example, f"example {number} of docs/client.md", "exec"), names)
        finally:
            # The last example closes it; an example that fails before must not leave its connections open.
            names["client"].close()


@pytest.mark.parametrize("name", topics_client.__all__)
def test_every_exported_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}\b|\b{name}\(", PAGE), name


@pytest.mark.parametrize("name", [name for name in dir(Client) if not name.startswith("_")])
def test_every_call_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}\b|\.{name}\(", PAGE), name


# Parameters with another name than in the description of the API.
CALLED = {
    "deleteRecords": "delete", "openSocket": "ws", "createWatch": "watch", "openWatch": "watch", "self": "whoami",
    "listBackups": "backups", "headStream": "get_stream", "appendToStream": "append_stream",
    "readStreamKey": "read_stream", "getStreamSchema": "get_schema", "updateStreamSchema": "update_schema",
    "getStreamProfile": "get_profile", "updateStreamProfile": "set_profile", "getTouches": "get_touch_state",
    "findEntries": "search", "searchStream": "search", "aggregateStream": "aggregate",
    "getServerDetails": "server_details", "getServerMemory": "server_memory", "callBack": "ack_wake",
    "listTopicConsumers": "list_consumers",
}  # fmt: skip
# Receivers of webhooks get the keys with the library that checks their signatures.
# Spark tasks read sealed files without the client.
LEFT_OUT = {"getSigningKeys", "readSealedFile"}


def test_everything_that_the_server_has_can_be_called(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server, Client(server.url) as caller:
        operations = [
            operation["operationId"]
            for path in caller.openapi()["paths"].values()
            for operation in path.values()
            if isinstance(operation, dict) and "operationId" in operation
        ]
    assert len(operations) > 50 and set(CALLED) <= set(operations)
    for name in set(operations) - LEFT_OUT:
        assert hasattr(Client, CALLED.get(name) or re.sub("([A-Z])", r"_\1", name).lower()), name


def test_every_option_is_on_the_page_with_its_default() -> None:
    listed = {cells[0].strip("`"): cells[1] for cells in rows(section(PAGE, "## Retries")) if len(cells) == 3}
    assert set(listed) == set(ClientOptions.__struct_fields__)
    defaults = msgspec.structs.asdict(ClientOptions())
    for name, shown in listed.items():
        if isinstance(defaults[name], int | float):
            assert shown == str(defaults[name]).lower(), name
    assert listed["retry"] == f"`{RetryPolicy()!r}`"


def test_every_code_is_on_the_page() -> None:
    table = {
        name: cells[1] for cells in rows(section(PAGE, "## Errors")) for name in re.findall(r"`([A-Z]\w+)`", cells[1])
    }
    for code, cls in topics_client.ApiError.by_code.items():
        spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        assert spelled == code or f"`{cls.__name__}` (`{code}`)" in table[cls.__name__], code
