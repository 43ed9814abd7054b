"""`topics stream ls`."""

from collections.abc import Iterator
from typing import Any

import msgspec

from topics.cli.shared.connection import HERE, Server
from topics.cli.shared.output import Output, listing
from topics.cli.stream.http import Streams, streams_of

_PAGE = 1000


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List streams, in the order of their names. Topics are streams, too.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
    """
    with streams_of(server) as streams:
        listing(
            output,
            ("STREAM", "ENTRIES", "CREATED", "EXPIRES"),
            (
                ((one["name"], int(one["next_offset"]), one["created_at"], one["expires_at"] or "never"), one)
                for one in _all(streams, prefix)
            ),
        )
    return 0


def _all(streams: Streams, prefix: str) -> Iterator[dict[str, Any]]:
    after: dict[str, str] = {}
    while True:
        query = {"limit": str(_PAGE), **({"prefix": prefix} if prefix else {}), **after}
        page = msgspec.json.decode(streams.ask("GET", "/v1/streams", query=query).body)
        yield from page
        if len(page) < _PAGE:
            return
        after = {"after": page[-1]["name"]}
