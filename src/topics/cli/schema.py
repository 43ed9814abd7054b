"""`topics schema`: the schema registry of a stream, its versions and lenses (schema migrations)."""

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import counted, document, one_from_stdin
from topics.cli.failures import CommandError, UsageError
from topics.cli.output import (
    Form,
    Output,
    encode,
    fields,
    flush,
    json_line,
    line,
    note,
    print_result,
    printable,
    raw_line,
    table,
)
from topics.cli.server_connection import HERE, Server, connected
from topics.cli.stream import name_of
from topics.schema.registry import Registry, Version, decide_update, parse_update
from topics_client import Client, Lens, RoutingKey, StreamSchema
from topics_client.streams.contracts import update_schema


def show(
    name: str,
    /,
    *,
    version: Annotated[
        int | None, Parameter(help="Print only the schema of this version.", show_default=lambda _: "the current one")
    ] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show the schema registry of a stream: versions, routing key and search description.

    With -o json print the whole registry, with -o raw or --version only a schema.

    Parameters
    ----------
    name
        The name of the stream.
    """
    with connected(server) as client:
        registry = client.get_schema(name_of(name))
    if version is not None or output == "raw":
        number = registry.current_version if version is None else version
        if number not in registry.schemas:
            known = f"there are 1 to {registry.current_version}" if registry.current_version else "there is none"
            raise CommandError(f"{name} has no schema of version {number}: {known}")
        json_line(registry.schemas[number])
    elif output == "json":
        json_line(registry)
    else:
        fields(_pairs(registry))
    return 0


def _pairs(registry: StreamSchema) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [("stream", registry.stream), ("version", registry.current_version or "none")]
    for boundary in registry.boundaries:
        lens = registry.lenses.get(boundary.version - 1)
        by = f", by a lens of {counted(len(lens['ops']), 'op')}" if lens is not None else ""
        about = f": {lens['description']}" if lens is not None and lens.get("description") else ""
        pairs.append((f"version {boundary.version}", f"from entry {boundary.offset}{by}{about}"))
    key = registry.routing_key
    pairs.append(("routing key", "none" if key is None else key.json_pointer + (", required" if key.required else "")))
    search = registry.search
    if search is None:
        pairs.append(("search", "none"))
        return pairs
    found = [f"{field} ({about['kind']})" for field, about in search["fields"].items()]
    pairs.append(("search", ", ".join(found)))
    for rollup, about in search.get("rollups", {}).items():
        by = ", ".join(about.get("dimensions", ())) or "nothing"
        pairs.append(
            (f"rollup {rollup}", f"{', '.join(about['measures'])} by {by}, every {', '.join(about['intervals'])}")
        )
    return pairs


# `topics schema set`, `evolve` and `preview`

Key = Annotated[
    str | None,
    Parameter(
        name="--routing-key",
        help="The JSON pointer of the routing key, such as /user; none removes it.",
        show_default=lambda _: "as it is",
    ),
]
Required = Annotated[
    bool, Parameter(negative="", show_default=False, help="With --routing-key: reject entries without a key.")
]
Search = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="The search description, a file, JSON or -; none removes it.",
        show_default=lambda _: "as it is",
    ),
]
LensFile = Annotated[
    str,
    Parameter(
        name="--lens",
        allow_leading_hyphen=True,
        help="The lens (migration), a file, JSON or -: the whole document, or only the array of its ops.",
    ),
]

_NONE = "none"


def parts(routing_key: str | None, required: bool, search: str | None) -> dict[str, Any]:
    """The parts of an update that are not its schema."""
    given: dict[str, Any] = {}
    if routing_key is not None:
        given["routing_key"] = None if routing_key == _NONE else RoutingKey(routing_key, required)
    elif required:
        raise UsageError("--required needs --routing-key")
    if search is not None:
        given["search"] = None if search == _NONE else document(search, "the search description")
    return given


def lens_of(text: str, source: int) -> Any:
    """The lens of an argument; an array of ops becomes a lens from version `source`."""
    found = document(text, "the lens")
    return Lens(source, found) if isinstance(found, list) else found


def describe_schema(name: str, registry: StreamSchema) -> str:
    """The message about a new version."""
    return f"{name} has version {registry.current_version} from entry {registry.boundaries[-1].offset} on"


def set_(
    name: str,
    schema: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    routing_key: Key = None,
    required: Required = False,
    search: Search = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Set the first schema of a stream, its routing key or its search description. Other parts do not change.

    Parameters
    ----------
    name
        The name of the stream.
    schema
        A JSON Schema: a file, JSON, or - for standard input. The stream must be empty.
    """
    one_from_stdin(schema, search)
    given = parts(routing_key, required, search)
    if schema is not None:
        given["schema"] = document(schema, "the schema")
    if not given:
        raise UsageError("no change given. Give a schema, --routing-key or --search")
    stream = name_of(name)
    with connected(server) as client:
        if schema is not None and (current := client.get_schema(stream).current_version):
            raise CommandError(
                f"{name} has version {current} already: `topics schema evolve` sets the next one with a lens"
            )
        registry = client.update_schema(stream, **given)
    print_result(
        registry,
        output,
        f"changed {name}" if schema is None else describe_schema(name, registry),
        str(registry.current_version),
    )
    return 0


def evolve(
    name: str,
    schema: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    lens: LensFile,
    routing_key: Key = None,
    required: Required = False,
    search: Search = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Evolve a stream to the next schema version. Older entries are read through the lens from then on.

    Parameters
    ----------
    name
        The name of the stream.
    schema
        The next JSON Schema: a file, JSON, or - for standard input.
    """
    one_from_stdin(schema, lens, search)
    given = parts(routing_key, required, search)
    stream, found = name_of(name), document(schema, "the schema")
    with connected(server) as client:
        way = lens_of(lens, client.get_schema(stream).current_version)
        registry = client.update_schema(stream, schema=found, lens=way, **given)
    print_result(registry, output, describe_schema(name, registry), str(registry.current_version))
    return 0


def infer(
    name: str,
    /,
    *,
    last: Annotated[
        int | None,
        Parameter(name=["--last", "-n"], help="The number of newest entries to look at.", show_default=lambda _: "200"),
    ] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Propose search fields from the newest entries of a stream, without changing anything.

    With -o raw print only the description, for `topics schema set NAME --search -`.

    Parameters
    ----------
    name
        The name of the stream.
    """
    if last is not None and not 1 <= last <= 1000:
        raise UsageError(f"--last is {last}; accepted is a whole number from 1 to 1000")
    with connected(server) as client:
        found = client.infer_search(name_of(name), entries=last)
    if output != "table":
        json_line(found if output == "json" else found.search)
        return 0
    table(["FIELD", "KIND", "POINTER"], [_proposed(field, about) for field, about in found.search["fields"].items()])
    flush()
    for one in found.skipped:
        note(f"left out {printable(one.pointer) or 'others'}: {printable(one.reason)}")
    count = found.sampled["entries"]
    note(f"sampled {count} {'entry' if count == 1 else 'entries'} of {name}; nothing was changed")
    return 0


def _proposed(field: str, about: Any) -> list[str]:
    if isinstance(about, str):
        return [field, about, "/" + field.replace(".", "/")]
    return [printable(field), about["kind"], printable(about["bindings"][0]["jsonPointer"])]


# `topics schema preview`, with the functions of the server


class Shown(msgspec.Struct):
    """An entry before and after the evolution."""

    before: msgspec.Raw
    after: msgspec.Raw


def preview(
    name: str,
    schema: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    lens: LensFile,
    last: Annotated[int, Parameter(name=["--last", "-n"], help="The number of newest entries to show.")] = 3,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Preview `evolve` on the newest entries, or show why it would be rejected, without changing anything.

    Parameters
    ----------
    name
        The name of the stream.
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


def _through(client: Client, stream: str, reported: StreamSchema, body: bytes, last: int) -> list[Shown]:
    """The newest entries before and after; raises the errors of the server."""
    state = client.get_topic(stream, touch=False, streams=True)
    now = _registry(reported)
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


def _registry(reported: StreamSchema) -> Registry:
    return Registry(
        tuple(
            Version(
                encode(reported.schemas[one.version]),
                encode(reported.lenses[one.version - 1]) if one.version > 1 else None,
                one.offset,
            )
            for one in reported.boundaries
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
