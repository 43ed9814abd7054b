"""`topics schema evolve`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.schema.updating import Key, LensFile, Required, Search, lens_of, parts, told
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.documents import document, one_from_stdin
from topics.cli.shared.output import Output, show
from topics.cli.stream.contents import name_of


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
    """Lead a stream to the next version of its schema. Older entries are shown through the lens from then on.

    Parameters
    ----------
    name
        Its name.
    schema
        The next JSON Schema: a file, JSON, or - for standard input.
    """
    one_from_stdin(schema, lens, search)
    given = parts(routing_key, required, search)
    stream, found = name_of(name), document(schema, "the schema")
    with connected(server) as client:
        way = lens_of(lens, client.get_schema(stream).current_version)
        registry = client.update_schema(stream, schema=found, lens=way, **given)
    show(registry, output, told(name, registry), str(registry.current_version))
    return 0
