"""`topics stream append`."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server
from topics.cli.shared.lines import batches, json_text, read_lines
from topics.cli.shared.output import line, note
from topics.cli.stream.http import is_json, path_of, streams_of, type_of

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
    with streams_of(server) as streams:
        content_type = type_of(streams, name)
        headers = {"content-type": content_type, **({"stream-key": key} if key is not None else {})}
        try:
            for body in _bodies(value, is_json(content_type)):
                streams.ask("POST", path_of(name), headers, body)
                count += 1
        except BaseException:
            if count:
                note(f"{count} requests before this were carried out")
            raise
        if close:
            streams.ask("POST", path_of(name), {"stream-closed": "true"}, b"")
    line(f"appended to {name}" + (" and closed it" if close else ""))
    return 0


def _bodies(value: str, is_json_stream: bool) -> Iterator[bytes]:
    if value != "-":
        data = value.encode("utf-8", "surrogateescape")
        # In an array of one, so that an array is one value, as everywhere else.
        yield b"[" + bytes(json_text(data, "the value", is_text=False)) + b"]" if is_json_stream else data
    elif is_json_stream:
        for numbered in read_lines(sys.stdin.fileno()):
            values = [json_text(content, f"line {number}", is_text=False) for number, content in numbered]
            for batch in batches(values):
                yield b"[" + b",".join(bytes(one) for one in batch) + b"]"
    else:
        while chunk := os.read(sys.stdin.fileno(), _CHUNK_BYTES):
            yield chunk
