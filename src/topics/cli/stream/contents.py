"""What the commands about streams have in common: names, content types, and pages to standard output."""

import sys

import msgspec

from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import flush, note, raw_line
from topics.client import Client, StreamPage

JSON = "application/json"
NOW = "now"
_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


def name_of(name: str) -> str:
    """The name of a stream; slashes belong to it, but for those in front of it."""
    if not name.strip("/"):
        raise UsageError("a stream needs a name")
    return name.lstrip("/")


def end_of(client: Client, name: str) -> StreamPage:
    """Where a stream ends, and what it holds. An answer to HEAD could not say why there is none."""
    return client.read_stream(name, NOW)


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON


def show(page: StreamPage) -> None:
    """Prints a page, and what was lost before it: JSON one value a line, bytes as they are."""
    if page.gap is not None:
        note(f"{page.name}: the entries {page.gap.replace('; reason=', ' are lost (')})")
    if page.content:
        if is_json(page.content_type):
            for value in _decode(page.content):
                raw_line(bytes(value))
        else:
            sys.stdout.buffer.write(page.content)
        flush()
