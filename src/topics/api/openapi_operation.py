"""What the OpenAPI document says of a route, in the same typed definitions the server decodes and encodes with."""

from typing import NamedTuple


class Parameter(NamedTuple):
    name: str
    schema: dict[str, object]
    text: str


class Operation(NamedTuple):
    """A route, described."""

    name: str
    summary: str
    answers: dict[int, type | str]
    """By status: the type of the JSON answer, or the content type of another one."""
    errors: tuple[str, ...] = ()
    """Codes of the refusals that belong to this route; those every route has are added."""
    body: type | None = None
    body_required: bool = False
    query: tuple[Parameter, ...] = ()
    any_name: bool = False
    """Whether the name in the path may be one that only streams can have."""
