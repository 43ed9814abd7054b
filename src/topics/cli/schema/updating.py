"""What the commands that change a registry have in common: their arguments, and what they say afterwards."""

from typing import Annotated, Any

from cyclopts import Parameter

from topics.cli.shared.documents import document
from topics.cli.shared.failures import UsageError
from topics.client import Lens, RoutingKey, StreamSchema

Key = Annotated[
    str | None,
    Parameter(
        name="--routing-key",
        help="Where the key of an entry stands, a JSON pointer such as /user; none takes it away.",
        show_default=lambda _: "as it is",
    ),
]
Required = Annotated[
    bool, Parameter(negative="", show_default=False, help="With --routing-key: refuse entries without one.")
]
Search = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="The search description, a file, JSON or -; none takes it away.",
        show_default=lambda _: "as it is",
    ),
]
LensFile = Annotated[
    str,
    Parameter(
        name="--lens",
        allow_leading_hyphen=True,
        help="The lens, a file, JSON or -: the whole document, or only the array of its ops.",
    ),
]

_NONE = "none"


def parts(routing_key: str | None, required: bool, search: str | None) -> dict[str, Any]:
    """The parts of an update that are not its schema."""
    given: dict[str, Any] = {}
    if routing_key is not None:
        given["routing_key"] = None if routing_key == _NONE else RoutingKey(routing_key, required)
    elif required:
        raise UsageError("--required says something about the key: name it with --routing-key")
    if search is not None:
        given["search"] = None if search == _NONE else document(search, "the search description")
    return given


def lens_of(text: str, source: int) -> Any:
    """The lens of an argument; of ops alone one that leads from the current version."""
    found = document(text, "the lens")
    return Lens(source, found) if isinstance(found, list) else found


def told(name: str, registry: StreamSchema) -> str:
    """What a new version is said to be."""
    return f"{name} has version {registry.current_version} from entry {registry.boundaries[-1].offset} on"
