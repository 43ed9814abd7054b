"""Options of topic commands: config fields, tags and filters, start positions, and the printing of records."""

import inspect
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import duration_ms, moment_ms, shown_time, size_bytes
from topics.cli.failures import UsageError
from topics.cli.output import (
    Form,
    Line,
    LostLine,
    cut,
    describe_gap,
    is_colourful,
    json_line,
    line,
    note,
    printable,
    raw_line,
    width,
)
from topics.model.topic_config import DEFAULT_CONFIG, TopicConfigPatch
from topics_client import Client, Gap, Record, TagMatch

_HELP = {
    "type": "The type: log, or queue, whose records are jobs to claim.",
    "ttl_ms": "The TTL of records, such as 7d; 0 for none.",
    "cap_records": "The maximum number of records; 0 for no limit.",
    "cap_bytes": "The maximum size, such as 64MiB; 0 for no limit.",
    "discard": "What a full topic does: drop the oldest records, or reject appends.",
    "durability": "The durability of acknowledged records.",
    "priority": "The delivery priority, a number; none for the server's choice.",
    "auto_priority": "Raise the priority for active readers.",
    "auto_create": "Create the topic again on append.",
    "idempotency_window_ms": "How long idempotency keys are kept, such as 2m.",
    "dedupe_node": "Do not return a reader's own records.",
    "lease_ms": "Queues: the lease duration, such as 30s.",
    "claim_jitter_ms": "Queues: how long a claim may wait to be batched.",
    "max_deliveries": "Queues: the maximum deliveries of a job; 0 for no limit.",
    "dead_letter": "Queues: the dead-letter topic; none for none.",
    "leases_durable": "Queues: make leases durable across crashes.",
    "retain_for_consumers": "Keep uncommitted records of consumers up to this topic size, such as 1GiB; 0 for not.",
    "max_per_second": "Queues: the maximum number of jobs handed out per second; 0 for no limit.",
    "max_leased": "Queues: the maximum number of jobs leased at once; 0 for no limit.",
    "fair_tags": "Queues: hand out jobs in fair shares of their tags.",
    "result_retention_ms": "Queues: how long results of jobs are kept, such as 1h; 0 for not.",
}
# The older form of `durability`.
_LEFT_OUT = {"durable"}


def config_options(*, defaults: bool) -> list[inspect.Parameter]:
    """A parameter for each config field; None means not given."""
    return [
        _option(field, defaults) for field in msgspec.structs.fields(TopicConfigPatch) if field.name not in _LEFT_OUT
    ]


def given_config(flags: dict[str, Any]) -> dict[str, object]:
    """The given fields, as values of the API."""
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
    """Adds an option for each config field to a command with `**flags`."""
    signature = inspect.signature(command)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *config_options(defaults=defaults)]
    )


def tag_match(text: str) -> TagMatch:
    """Parses a tag: `order-7` is that tag, `order-*` every tag with this prefix."""
    literal = text.removesuffix("*")
    if "*" in literal:
        raise UsageError(f"the tag {text!r} has a * in it: only one at the end is allowed")
    return TagMatch(literal, prefix=literal != text)


# Filters: by tag and by payload.

Tag = Annotated[str | None, Parameter(help="Print only records with this tag; a * at the end matches any suffix.")]
Filter = Annotated[
    list[str] | None,
    Parameter(
        negative="",
        consume_multiple=False,
        allow_leading_hyphen=True,
        help="Print only records that match: member=value, a.b=value or a!=value in the payload; or a query such as"
        " '/total:>=5 tag:order-*', which the server evaluates. May be repeated; all must match.",
    ),
]
Matches = Callable[[Record], bool]

# The beginning of a query, which no member=value filter has.
_QUERY = re.compile(r"[\s(-]*(NOT\b|/|(tag|node|ts|seq|has)\s*:)")

_MISSING = object()


class Meant(NamedTuple):
    """The filter of a read: a query for the server, and a predicate of the command; None for all records."""

    query: str | None
    matches: Matches | None


def meant(tag: str | None, filters: list[str] | None) -> Meant:
    given = filters or []
    queries = [text for text in given if _QUERY.match(text)]
    conditions = [_condition(text) for text in given if text not in queries]
    if tag is not None:
        conditions.append(_tagged(tag))
    query = queries[0] if len(queries) == 1 else " ".join(f"({text})" for text in queries) or None
    return Meant(query, (lambda record: all(holds(record) for holds in conditions)) if conditions else None)


def _tagged(tag: str) -> Matches:
    match = tag_match(tag)
    return lambda record: match.matches(record.tag)


def _condition(text: str) -> Matches:
    path, sign, value = text.partition("=")
    negative = path.endswith("!")
    steps = path.removesuffix("!").split(".")
    if not sign or not all(steps):
        raise UsageError(f"--filter is {text!r}; accepted is a member and its value, such as status=paid")
    try:
        requested = msgspec.json.decode(value)
    except msgspec.DecodeError:
        # Text needs no quotes, which the shell would remove.
        requested = value

    def holds(record: Record) -> bool:
        found = _member(_data(record), steps)
        # In JSON true and 1 differ, in Python they are equal.
        return (found == requested and isinstance(found, bool) == isinstance(requested, bool)) is not negative

    return holds


def _data(record: Record) -> object:
    try:
        return record.data
    except (ValueError, RecursionError):
        # JSON has numbers that Python cannot represent, such as 1e999. They must not end the command.
        return _MISSING


def _member(value: Any, steps: list[str]) -> object:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, _MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value


# Start positions.

From = Annotated[int | None, Parameter(name="--from", help="The first seq to print.")]
Since = Annotated[
    str | None,
    Parameter(help="The start time: a time before now, such as 10m, or a date such as 2026-02-24T12:00:00Z."),
]
Last = Annotated[int | None, Parameter(name=["--last", "-n"], help="The number of newest records to start with.")]


def moment_of(since: str, now_ms: int) -> datetime:
    """The time of --since."""
    return datetime.fromtimestamp(moment_ms(since, "--since", now_ms) / 1000, UTC)


def cursor_of(
    client: Client,
    topic: str,
    from_seq: int | None,
    since: str | None,
    last: int | None,
    now_ms: int,
    requested: Meant,
) -> int:
    """The cursor to start after; --last counts matching records only."""
    if sum(given is not None for given in (from_seq, since, last)) > 1:
        raise UsageError("--from, --since and --last exclude each other: give one of them")
    if from_seq is not None:
        return max(from_seq - 1, 0)
    if since is not None:
        return client.seek(topic, since=moment_of(since, now_ms))
    if last is not None:
        return client.seek(topic, last=last, matches=requested.matches, filter=requested.query)
    return 0


# Printing of records.

RecordForm = Annotated[
    Form | None,
    Parameter(
        name=["--output", "-o"],
        help="A table, one JSON object a line, or raw payloads.",
        show_default=lambda _: "table on a terminal, raw in a pipe",
    ),
]

_DIM, _CYAN, _RESET = "\x1b[2m", "\x1b[36m", "\x1b[0m"


class Printer:
    """Prints records, and messages about lost ones."""

    def __init__(self, topic: str, form: Form | None, matches: Matches | None) -> None:
        self._topic = topic
        self._matches = matches
        self._form = form or ("table" if sys.stdout.isatty() else "raw")
        self._colourful = is_colourful(sys.stdout)
        self.count = 0

    def take(self, item: Record | Gap) -> None:
        if isinstance(item, Gap):
            self.gap(item)
        elif self._matches is None or self._matches(item):
            self.count += 1
            self.record(item)

    def record(self, record: Record) -> None:
        if self._form == "raw":
            raw_line(record.raw)
        elif self._form == "json":
            json_line(Line.of(record))
        else:
            self._row(record)

    def gap(self, gap: Gap) -> None:
        if self._form == "json":
            json_line(LostLine.of(gap))
        note(describe_gap(self._topic, gap))

    def _row(self, record: Record) -> None:
        seq, moment = f"{record.seq:>6}", shown_time(record.ts)
        tag = printable(record.tag or "")
        payload = printable(record.raw.decode("utf-8", "replace"))
        if record.meta:
            payload += "  " + printable(msgspec.json.encode(record.meta).decode())
        front = f"{seq}  {moment}  " + (f"{tag}  " if tag else "")
        if sys.stdout.isatty():
            payload = cut(payload, max(width() - len(front), 8))
        if self._colourful:
            front = f"{seq}  {_DIM}{moment}{_RESET}  " + (f"{_CYAN}{tag}{_RESET}  " if tag else "")
        line(front + payload)
