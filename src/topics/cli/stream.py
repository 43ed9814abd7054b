"""`topics stream ls`."""

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
from topics.cli.server_connection import HERE, PATIENT_S, TOLD_AFTER_S, Server, connected, wait_for
from topics.cli.topic_options import Since, moment_of
from topics.system.clock import SystemClock
from topics_client import Client, ConnectionFailed, OffsetGone, RetryLater, StreamDetails, StreamPage, StreamProfile


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List streams, in the order of their names. Topics are streams, too.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
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


# What the commands about streams have in common: names, content types, and pages to standard output.

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


def print_page(page: StreamPage) -> None:
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


# `topics stream show`.


def show(name: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show where a stream stands, what it promises, and where its bytes are. Looking does not keep it alive.

    Parameters
    ----------
    name
        Its name.
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


# `topics stream create`.


def create(
    name: str,
    /,
    *,
    content_type: Annotated[str, Parameter(help="What it holds, for good: JSON values, or bytes of any kind.")] = JSON,
    ttl: Annotated[str | None, Parameter(help="How long it lives without being used, such as 3600 or 1h.")] = None,
    server: Server = HERE,
) -> int:
    """Create a stream.

    Parameters
    ----------
    name
        Its name; it may have slashes.
    """
    ttl_s = None if ttl is None else _seconds(ttl)
    with connected(server) as client:
        made = client.put_stream(name_of(name), content_type=content_type, ttl_s=ttl_s)
    line(f"created {name}" if made.created else f"{name} is there already, as asked")
    return 0


def _seconds(text: str) -> int:
    """A time span; a number alone is seconds, as in the protocol."""
    seconds, rest = divmod(duration_ms(f"{text}s" if text.isascii() and text.isdigit() else text, "--ttl"), 1000)
    if rest or not seconds:
        raise UsageError(f"--ttl is {text!r}; accepted is a time of whole seconds, such as 3600 or 1h")
    return seconds


# `topics stream append`.

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


# `topics stream read`.

Offset = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="Where to begin: an offset, or -1 for the start.",
        show_default=lambda _: "-1",
    ),
]
Key = Annotated[str | None, Parameter(help="Only entries of this key.")]


Filter = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="Only entries that match, a query over declared fields such as 'status:>=500 -service:search'.",
    ),
]


def read(
    name: str,
    /,
    *,
    offset: Offset = None,
    since: Since = None,
    key: Key = None,
    filter: Filter = None,
    server: Server = HERE,
) -> int:
    """Print what a stream holds, up to its end: JSON one value a line, bytes as they are.

    Parameters
    ----------
    name
        Its name.
    """
    if offset is not None and since is not None:
        raise UsageError("--offset and --since are two ways to say where to begin: give one of them")
    moment = None if since is None else moment_of(since, SystemClock().now_ms())
    stream = name_of(name)
    with connected(server, PATIENT_S) as client:
        while True:
            page = client.read_stream(stream, offset, since=moment, key=key, filter=filter)
            print_page(page)
            if page.up_to_date or page.closed:
                return 0
            offset, moment = page.next_offset, None


# `topics stream tail`.

_START = "-1"


def tail(
    name: str,
    /,
    *,
    offset: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Where to begin: an offset, -1 for the start, or now.")
    ] = NOW,
    key: Key = None,
    filter: Filter = None,
    server: Server = HERE,
) -> int:
    """Print what comes into a stream, until it is closed. A server that is restarted is waited for.

    Parameters
    ----------
    name
        Its name.
    """
    stream = name_of(name)
    with connected(server) as client:
        # A stream that is not there is told now, and not waited for.
        end = end_of(client, stream)
        _follow(client, stream, end.next_offset if offset == NOW else offset, key, filter)
    return 0


def _follow(client: Client, name: str, offset: str, key: str | None, filter: str | None) -> None:
    while True:
        pages = client.tail_stream(name, offset, key=key, filter=filter, live="long-poll", deadline_s=TOLD_AFTER_S)
        try:
            for page in pages:
                print_page(page)
            return
        except OffsetGone:
            note(f"{name}: the next entries are gone; it goes on with the first there is")
            offset = _START
        except (ConnectionFailed, RetryLater) as error:
            wait_for(client, error)
            offset = pages.offset


# `topics stream close`.


def close(name: str, /, *, server: Server = HERE) -> int:
    """Close a stream: it can be read, and nothing more can be appended.

    Parameters
    ----------
    name
        Its name.
    """
    with connected(server) as client:
        client.close_stream(name_of(name))
    line(f"closed {name}")
    return 0


# `topics stream rm`.


def rm(*names: Annotated[str, Parameter(required=True)], yes: Yes = False, server: Server = HERE) -> int:
    """Delete streams with everything in them. On a terminal it asks first.

    Parameters
    ----------
    names
        Their names.
    """
    confirm(f"delete {', '.join(names)} with everything in it?", yes)
    with connected(server) as client:
        for name in names:
            client.delete_stream(name_of(name))
            line(f"deleted {name}")
    return 0


# `topics stream keys`.


def keys(
    name: str,
    /,
    *,
    after: Annotated[str | None, Parameter(help="Only keys behind this one.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List the routing keys that entries of a stream have, in their order.

    Parameters
    ----------
    name
        Its name.
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
                note(f"{name}: not every entry was looked at; ask again")
            place = page.next_after
            if place is None:
                return 0


# `topics stream profile`.


def profile(
    name: str,
    new: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show what a stream is for, or say it.

    Parameters
    ----------
    name
        Its name.
    new
        A kind, such as generic, evlog, metrics, otel-traces or state-protocol; with settings as JSON, such as
        '{"kind":"evlog","redactKeys":["pin"]}'. Without it the profile is shown.
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
        line(f"{name} is {found.kind} now")
    else:
        _show(found)
    return 0


def _show(found: StreamProfile) -> None:
    settings = {
        name: value if isinstance(value, str | int) and not isinstance(value, bool) else encode(value).decode()
        for name, value in found.settings.items()
    }
    fields([("kind", found.kind), *settings.items()])
