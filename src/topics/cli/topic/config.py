"""The config of a topic as options: one for each of its fields, made from the table of them."""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.shared.amounts import duration_ms, size_bytes
from topics.cli.shared.failures import UsageError
from topics.core.config import DEFAULT_CONFIG, TopicConfigPatch

_HELP = {
    "type": "A log keeps records; a queue also hands them out as jobs.",
    "ttl_ms": "Age at which records go, such as 7d; 0 is never.",
    "cap_records": "Most records; 0 is no limit.",
    "cap_bytes": "Most bytes, such as 64MiB; 0 is no limit.",
    "discard": "What a full topic does: drop the oldest record, or reject the new one.",
    "durability": "What an acknowledgement promises.",
    "priority": "Who is told first, a number; none lets the server decide.",
    "auto_priority": "Let readers raise the priority.",
    "auto_create": "Create the topic again when somebody appends to it.",
    "idempotency_window_ms": "How long keys of appends are remembered, such as 2m.",
    "dedupe_node": "Leave a reader's own records out.",
    "lease_ms": "Queues: how long a job is a worker's, such as 30s.",
    "claim_jitter_ms": "Queues: how long a claim may wait for company.",
    "max_deliveries": "Queues: how often a job is tried; 0 is for ever.",
    "dead_letter": "Queues: the topic that jobs go to after that; none is nowhere.",
    "leases_durable": "Queues: let leases survive a crash.",
}
# The older, coarser word for `durability`.
_LEFT_OUT = {"durable"}


def config_options(*, defaults: bool) -> list[inspect.Parameter]:
    """A parameter for each field; None stands for what was not given."""
    return [
        _option(field, defaults) for field in msgspec.structs.fields(TopicConfigPatch) if field.name not in _LEFT_OUT
    ]


def given_config(flags: dict[str, Any]) -> dict[str, object]:
    """The fields that were given, as the server wants them."""
    return {name: _value(name, text) for name, text in flags.items() if text is not None}


def _option(field: msgspec.structs.FieldInfo, defaults: bool) -> inspect.Parameter:
    default = getattr(DEFAULT_CONFIG, field.name)
    shown = _shown(default)
    kind: Any = str
    if isinstance(default, bool):
        kind = bool
    elif isinstance(default, Enum):
        kind = Literal[tuple(member.value for member in type(default))]
    elif isinstance(default, int) and not field.name.endswith(("_ms", "_bytes")):
        kind = int
    parameter = Parameter(
        name=f"--{field.name.replace('_', '-')}",
        help=_HELP[field.name],
        show_default=(lambda _: shown) if defaults else False,
        group="Config",
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, parameter]
    )


def _shown(default: object) -> str:
    if isinstance(default, Enum):
        return str(default.value)
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default is None else str(default)


def _value(name: str, given: Any) -> object:
    flag = f"--{name.replace('_', '-')}"
    if name.endswith("_ms"):
        return duration_ms(given, flag)
    if name.endswith("_bytes"):
        return size_bytes(given, flag)
    if name in ("priority", "dead_letter") and given == "none":
        return None
    if name == "priority":
        try:
            return int(given)
        except ValueError:
            raise UsageError(f"{flag} is {given!r}; accepted is a whole number, or none") from None
    return given


def with_config(command: Callable[..., int], *, defaults: bool) -> None:
    """Gives a command, whose last parameter is `**flags`, an option for each field of a config."""
    signature = inspect.signature(command)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *config_options(defaults=defaults)]
    )
