"""`topics schema show`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import counted
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import CommandError
from topics.cli.shared.output import Output, fields, json_line
from topics.cli.stream.contents import name_of
from topics.client import StreamSchema


def show(
    name: str,
    /,
    *,
    version: Annotated[
        int | None, Parameter(help="Print the schema of this version alone.", show_default=lambda _: "the current one")
    ] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show the registry of a stream: its versions, its routing key, and what can be searched.

    With -o json the whole registry, with -o raw or --version a schema alone.

    Parameters
    ----------
    name
        Its name.
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
