"""The conversations on the pages of /v1 are held with a server: the same statuses, answers with the same members."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.unit.docs.pages import read, stream_pages

_BLOCK = re.compile(r"^```http\n(.*?)^```", re.MULTILINE | re.DOTALL)
_METHOD = re.compile(r"(GET|PUT|POST|HEAD|DELETE) (/\S+)")
_HEADER = re.compile(r"([a-z-]+): (.+)")
BLOCKS = [
    *_BLOCK.findall(stream_pages()),
    # One conversation, split over blocks.
    "\n".join(_BLOCK.findall(read("docs/search.md"))),
]


def steps(block: str) -> Iterator[tuple[str, str, dict[str, str], str, int, str]]:
    """Method, path, headers, body, status and answer of each exchange."""
    parts = [part for part in block.strip().split("\n\n") if part]
    assert len(parts) % 2 == 0, "each request has an answer"
    for request, answer in zip(parts[0::2], parts[1::2], strict=True):
        first, *rest = request.split("\n")
        found = _METHOD.fullmatch(first)
        assert found is not None, first
        headers: dict[str, str] = {}
        while rest and (header := _HEADER.fullmatch(rest[0])) is not None:
            headers[header[1]] = header[2]
            rest.pop(0)
        status, _, shown = answer.partition("\n")
        yield found[1], found[2], headers, "\n".join(rest), int(status), shown


def holds(shown: Any, found: Any) -> bool:
    """Whether everything that is shown was found; there may be more members."""
    if isinstance(shown, dict) and isinstance(found, dict):
        return all(name in found and holds(value, found[name]) for name, value in shown.items())
    if isinstance(shown, list) and isinstance(found, list):
        return len(shown) == len(found) and all(map(holds, shown, found))
    return bool(shown == found)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_conversation_of_the_page(http: httpx.Client, block: str) -> None:
    for method, path, headers, body, status, shown in steps(block):
        # On a machine that is busy a search may take more than its time.
        while (
            (answer := http.request(method, path, headers=headers, content=body.encode())).status_code == 408 != status
        ):
            pass
        assert answer.status_code == status, (method, path, answer.text)
        if shown:
            assert holds(json.loads(shown), answer.json()), (shown, answer.text)


def test_there_are_some() -> None:
    assert len(BLOCKS) >= 3
