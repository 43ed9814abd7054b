"""`topics stream`: streams of the Durable Streams protocol."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import document, duration_ms, shown_bytes
from topics.cli.failures import UsageError
from topics.cli.output import (
    Output,
    Yes,
    batches,
    confirm,
    encode,
    fields,
    flush,
    json_line,
    json_text,
    line,
    note,
    print_table,
    printable,
    raw_line,
    read_lines,
)
from topics.cli.server_connection import HERE, PATIENT_S, PROGRESS_AFTER_S, Server, connected, wait_for
from topics.cli.topic_options import Since, moment_of
from topics.system.clock import SystemClock
from topics_client import Client, ConnectionFailed, OffsetGone, RetryLater, StreamDetails, StreamPage, StreamProfile


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List streams by name. Topics are streams, too.

    Parameters
    ----------
    prefix
        List only streams with this prefix.
    """
    with connected(server) as client:
        print_table(
            output,
            ("STREAM", "ENTRIES", "CREATED", "EXPIRES", "PROFILE"),
            (
                ((one.name, int(one.next_offset), one.created_at, one.expires_at or "never", one.profile), one)
                for one in client.all_streams(prefix)
            ),
        )
    return 0


# Shared by the stream commands: names, content types and pages.

JSON = "application/json"
NOW = "now"
_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


def name_of(name: str) -> str:
    """The name of a stream without leading slashes."""
    if not name.strip("/"):
        raise UsageError("a stream needs a name")
    return name.lstrip("/")


def end_of(client: Client, name: str) -> StreamPage:
    """The end and the content type of a stream. A response to HEAD would have no error message."""
    return client.read_stream(name, NOW)


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON


def print_page(page: StreamPage) -> None:
    """Prints a page and the gap before it: JSON one value a line, bytes unchanged."""
    if page.gap is not None:
        note(f"{page.name}: the entries {page.gap.replace('; reason=', ' are lost (')})")
    if page.content:
        if is_json(page.content_type):
            for value in _decode(page.content):
                raw_line(bytes(value))
        else:
            sys.stdout.buffer.write(page.content)
        flush()


def show(name: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show the state, the schema and the storage of a stream. This does not renew its TTL.

    Parameters
    ----------
    name
        The name of the stream.
    """
    with connected(server) as client:
        details = client.get_stream_details(name_of(name))
    assert details is not None
    if output == "json":
        json_line(details)
    elif output == "raw":
        line(details.stream.next_offset)
    else:
        fields(_pairs(details))
    return 0


def _pairs(details: StreamDetails) -> list[tuple[str, object]]:
    stream, schema = details.stream, details.schema
    size = int(stream.total_size_bytes)
    families = {one["family"]: one["lag_segments"] for one in details.index_status.get("search_families", ())}
    return [
        ("stream", stream.name),
        ("content type", stream.content_type),
        ("profile", stream.profile),
        ("entries", stream.next_offset),
        ("bytes", f"{size} ({shown_bytes(size)})" if size >= 1024 else size),
        ("closed", "yes" if stream.closed else "no"),
        ("created", stream.created_at),
        ("last append", stream.last_append_at),
        ("expires", stream.expires_at or "never"),
        ("schema version", schema.current_version or "none"),
        ("routing key", schema.routing_key.json_pointer if schema.routing_key else "none"),
        ("searchable fields", len((schema.search or {}).get("fields", ()))),
        ("segments", stream.segment_count),
        ("indexes behind", ", ".join(f"{name} by {lag}" for name, lag in families.items() if lag) or "none"),
    ]


def create(
    name: str,
    /,
    *,
    content_type: Annotated[
        str, Parameter(help="The content type, which cannot be changed: JSON, or any other for bytes.")
    ] = JSON,
    ttl: Annotated[str | None, Parameter(help="Delete it after this time without use, such as 3600 or 1h.")] = None,
    server: Server = HERE,
) -> int:
    """Create a stream.

    Parameters
    ----------
    name
        The name of the stream; it may contain slashes.
    """
    ttl_s = None if ttl is None else _seconds(ttl)
    with connected(server) as client:
        made = client.put_stream(name_of(name), content_type=content_type, ttl_s=ttl_s)
    line(f"created {name}" if made.created else f"{name} exists already")
    return 0


def _seconds(text: str) -> int:
    """A duration; a number without a unit is seconds, as in the protocol."""
    seconds, rest = divmod(duration_ms(f"{text}s" if text.isascii() and text.isdigit() else text, "--ttl"), 1000)
    if rest or not seconds:
        raise UsageError(f"--ttl is {text!r}; accepted is a time of whole seconds, such as 3600 or 1h")
    return seconds


_CHUNK_BYTES = 1024 * 1024


def append(
    name: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    key: Annotated[str | None, Parameter(help="The routing key, which is the tag of the record.")] = None,
    close: Annotated[bool, Parameter(negative="", show_default=False, help="Close the stream after it.")] = False,
    server: Server = HERE,
) -> int:
    """Append to a stream.

    Parameters
    ----------
    name
        The name of the stream.
    value
        A JSON value, or bytes for a stream of bytes; - for standard input, JSON one value a line.
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
        # In a list, so that an array is one value, as in other commands.
        yield [json_text(data, "the value", is_text=False)] if is_json_stream else data
    elif is_json_stream:
        for numbered in read_lines(sys.stdin.fileno()):
            values = [json_text(content, f"line {number}", is_text=False) for number, content in numbered]
            yield from batches(values)
    else:
        while chunk := os.read(sys.stdin.fileno(), _CHUNK_BYTES):
            yield chunk


Offset = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="The offset to start at; -1 for the beginning.",
        show_default=lambda _: "-1",
    ),
]
RoutingKey = Annotated[str | None, Parameter(help="Print only entries with this routing key.")]


Filter = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="Print only entries that match a query over declared fields, such as 'status:>=500 -service:search'.",
    ),
]


def read(
    name: str,
    /,
    *,
    offset: Offset = None,
    since: Since = None,
    key: RoutingKey = None,
    filter: Filter = None,
    server: Server = HERE,
) -> int:
    """Print the entries of a stream up to its end: JSON one value a line, bytes unchanged.

    Parameters
    ----------
    name
        The name of the stream.
    """
    if offset is not None and since is not None:
        raise UsageError("--offset and --since exclude each other: give one of them")
    moment = None if since is None else moment_of(since, SystemClock().now_ms())
    stream = name_of(name)
    with connected(server, PATIENT_S) as client:
        while True:
            page = client.read_stream(stream, offset, since=moment, key=key, filter=filter)
            print_page(page)
            if page.up_to_date or page.closed:
                return 0
            offset, moment = page.next_offset, None


_START = "-1"


def tail(
    name: str,
    /,
    *,
    offset: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="The offset to start at; -1 for the beginning, or now.")
    ] = NOW,
    key: RoutingKey = None,
    filter: Filter = None,
    server: Server = HERE,
) -> int:
    """Follow a stream: print new entries until it is closed. Reconnects to a restarted server.

    Parameters
    ----------
    name
        The name of the stream.
    """
    stream = name_of(name)
    with connected(server) as client:
        # Fails at once for a missing stream.
        end = end_of(client, stream)
        _follow(client, stream, end.next_offset if offset == NOW else offset, key, filter)
    return 0


def _follow(client: Client, name: str, offset: str, key: str | None, filter: str | None) -> None:
    while True:
        pages = client.tail_stream(name, offset, key=key, filter=filter, live="long-poll", deadline_s=PROGRESS_AFTER_S)
        try:
            for page in pages:
                print_page(page)
            return
        except OffsetGone:
            note(f"{name}: the next entries were removed; reading continues with the first existing one")
            offset = _START
        except (ConnectionFailed, RetryLater) as error:
            wait_for(client, error)
            offset = pages.offset


def close(name: str, /, *, server: Server = HERE) -> int:
    """Close a stream for appends. It can still be read.

    Parameters
    ----------
    name
        The name of the stream.
    """
    with connected(server) as client:
        client.close_stream(name_of(name))
    line(f"closed {name}")
    return 0


def rm(*names: Annotated[str, Parameter(required=True)], yes: Yes = False, server: Server = HERE) -> int:
    """Delete streams and their entries. Asks for confirmation on a terminal.

    Parameters
    ----------
    names
        The names of the streams.
    """
    confirm(f"delete {', '.join(names)} with everything in it?", yes)
    with connected(server) as client:
        for name in names:
            client.delete_stream(name_of(name))
            line(f"deleted {name}")
    return 0


def keys(
    name: str,
    /,
    *,
    after: Annotated[str | None, Parameter(help="List only keys after this one.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List the routing keys of a stream in order.

    Parameters
    ----------
    name
        The name of the stream.
    """
    stream, place = name_of(name), after
    with connected(server) as client:
        while True:
            page = client.list_routing_keys(stream, after=place, limit=500)
            for key in page.keys:
                if output == "json":
                    json_line({"key": key})
                else:
                    line(printable(key) if output == "table" else key)
            if not page.coverage.complete:
                note(f"{name}: not every entry was searched; repeat the command")
            place = page.next_after
            if place is None:
                return 0


def profile(
    name: str,
    new: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show or set the profile of a stream.

    Parameters
    ----------
    name
        The name of the stream.
    new
        The new profile: a kind, such as generic, evlog, metrics, otel-traces or state-protocol, or JSON with settings,
        such as '{"kind":"evlog","redactKeys":["pin"]}'. Without it the current profile is shown.
    """
    stream = name_of(name)
    with connected(server) as client:
        if new is None:
            found = client.get_profile(stream)
        else:
            is_json = new.lstrip().startswith("{") or new == "-"
            found = client.set_profile(stream, document(new, "the profile") if is_json else new)
    if output == "json":
        json_line({"kind": found.kind, **found.settings})
    elif output == "raw":
        line(found.kind)
    elif new is not None:
        line(f"{name} has the profile {found.kind}")
    else:
        _show(found)
    return 0


def _show(found: StreamProfile) -> None:
    settings = {
        name: value if isinstance(value, str | int) and not isinstance(value, bool) else encode(value).decode()
        for name, value in found.settings.items()
    }
    fields([("kind", found.kind), *settings.items()])
