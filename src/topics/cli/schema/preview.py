"""`topics schema preview`: what an evolution would make of the newest entries, by the functions of the server."""

from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.schema.updating import LensFile, lens_of
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.documents import document, one_from_stdin
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import Form, Output, encode, flush, json_line, line, note, printable, raw_line
from topics.cli.stream.contents import name_of
from topics.client import Client, StreamSchema
from topics.client.streams.contracts import update_schema
from topics.schema.registry import Registry, Version
from topics.schema.updates import decide_update, parse_update


class Shown(msgspec.Struct):
    """One entry, as it is shown now and as it would be."""

    before: msgspec.Raw
    after: msgspec.Raw


def preview(
    name: str,
    schema: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    lens: LensFile,
    last: Annotated[int, Parameter(name=["--last", "-n"], help="How many of the newest entries to show.")] = 3,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show what `evolve` would make of the newest entries, or why it would be refused. Nothing is changed.

    Parameters
    ----------
    name
        Its name.
    schema
        The next JSON Schema: a file, JSON, or - for standard input.
    """
    one_from_stdin(schema, lens)
    if not 0 <= last <= 1000:
        raise UsageError(f"--last is {last}; accepted is a whole number from 0 to 1000")
    stream, found = name_of(name), document(schema, "the schema")
    with connected(server) as client:
        registry = client.get_schema(stream)
        body = update_schema(stream, schema=found, lens=lens_of(lens, registry.current_version)).body
        shown = _through(client, stream, registry, body or b"", last)
    for one in shown:
        _print(one, output)
    flush()
    note(f"{name} would have version {registry.current_version + 1}; nothing was changed")
    return 0


def _through(client: Client, stream: str, told: StreamSchema, body: bytes, last: int) -> list[Shown]:
    """The newest entries before and after; raises what the server would refuse."""
    state = client.get_topic(stream, touch=False, streams=True)
    now = _registry(told)
    then = decide_update(now, parse_update(body), stream=stream.strip("/"), empty=False, next_seq=state.head_seq)
    if not last or not state.count:
        return []
    start = max(state.head_seq - last, state.earliest_seq - 1)
    found = client.diff(stream, start, limit=last, include_meta=False, streams=True)
    return [
        Shown(
            msgspec.Raw(now.promoter.promote(record.seq - 1, record.raw)),
            msgspec.Raw(then.promoter.promote(record.seq - 1, record.raw)),
        )
        for record in found.records
    ]


def _registry(told: StreamSchema) -> Registry:
    return Registry(
        tuple(
            Version(
                encode(told.schemas[one.version]),
                encode(told.lenses[one.version - 1]) if one.version > 1 else None,
                one.offset,
            )
            for one in told.boundaries
        )
    )


def _print(one: Shown, output: Form) -> None:
    if output == "json":
        json_line(one)
    elif output == "raw":
        raw_line(bytes(one.after))
    else:
        for sign, text in (("-", one.before), ("+", one.after)):
            line(f"{sign} {printable(bytes(text).decode('utf-8', 'replace'))}")
