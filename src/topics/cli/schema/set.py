"""`topics schema set`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.schema.updating import Key, Required, Search, parts, told
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.documents import document, one_from_stdin
from topics.cli.shared.failures import CommandError, UsageError
from topics.cli.shared.output import Output, show
from topics.cli.stream.contents import name_of


def set(
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
    """Set the first schema of a stream, its routing key or its search description. What is not named stays.

    Parameters
    ----------
    name
        Its name.
    schema
        A JSON Schema: a file, JSON, or - for standard input. It goes onto a stream to which nothing was appended yet.
    """
    one_from_stdin(schema, search)
    given = parts(routing_key, required, search)
    if schema is not None:
        given["schema"] = document(schema, "the schema")
    if not given:
        raise UsageError("say what to set: a schema, --routing-key or --search")
    stream = name_of(name)
    with connected(server) as client:
        if schema is not None and (current := client.get_schema(stream).current_version):
            raise CommandError(
                f"{name} has version {current} already: `topics schema evolve` leads to the next one with a lens"
            )
        registry = client.update_schema(stream, **given)
    show(registry, output, f"changed {name}" if schema is None else told(name, registry), str(registry.current_version))
    return 0
