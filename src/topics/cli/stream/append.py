"""`topics stream append`."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.lines import batches, json_text, read_lines
from topics.cli.shared.output import line, note
from topics.cli.stream.contents import end_of, is_json, name_of

_CHUNK_BYTES = 1024 * 1024


def append(
    name: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    key: Annotated[str | None, Parameter(help="The key of what is appended; it is the tag of the record.")] = None,
    close: Annotated[bool, Parameter(negative="", show_default=False, help="Nothing can follow it.")] = False,
    server: Server = HERE,
) -> int:
    """Append to a stream.

    Parameters
    ----------
    name
        Its name.
    value
        A JSON value, or bytes where the stream holds bytes; - is standard input, for JSON one value a line.
    """
    count = 0
    stream = name_of(name)
    with connected(server) as client:
        content_type = end_of(client, stream).content_type
        try:
            for entries in _parts(value, is_json(content_type)):
                client.append_stream(stream, entries, content_type=content_type, key=key)
                count += 1
        except BaseException:
            if count:
                note(f"{count} requests before this were carried out")
            raise
        if close:
            client.close_stream(stream)
    line(f"appended to {name}" + (" and closed it" if close else ""))
    return 0


def _parts(value: str, is_json_stream: bool) -> Iterator[bytes | list[msgspec.Raw]]:
    if value != "-":
        data = value.encode("utf-8", "surrogateescape")
        # In a list of one, so that an array is one value, as everywhere else.
        yield [json_text(data, "the value", is_text=False)] if is_json_stream else data
    elif is_json_stream:
        for numbered in read_lines(sys.stdin.fileno()):
            values = [json_text(content, f"line {number}", is_text=False) for number, content in numbered]
            yield from batches(values)
    else:
        while chunk := os.read(sys.stdin.fileno(), _CHUNK_BYTES):
            yield chunk
