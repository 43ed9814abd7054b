"""Waiting for changes of rows: templates, the keys that queries come to, and the waits themselves.

The keys are computed by the functions that the server uses, imported on first use because they need xxhash.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from topics_client.requests import Request, encode_values, given_only
from topics_client.streams.contents import stream_path
from topics_client.transport.http1 import Response

Encoding = Literal["string", "int64", "bool", "datetime", "bytes"]

NOW = "now"
_WAIT_MS = 30_000
"""The default durations of a wait and of its settling on the server."""


class TouchTemplate(msgspec.Struct, frozen=True):
    """A query with open arguments: an entity, and one to three of its fields with their encodings."""

    entity: str
    fields: Mapping[str, Encoding]

    @property
    def id(self) -> str:
        """The name of the template."""
        from topics_protocol.touch_keys import template_id  # noqa: PLC0415

        return template_id(self.entity, self.fields)

    def watch_key(self, **arguments: object) -> str:
        """Touched by every change of a row that has these arguments, before the change or after it."""
        from topics_protocol.touch_keys import watch_key  # noqa: PLC0415

        return watch_key(self.id, self._encoded(arguments))

    def membership_key(self, **arguments: object) -> str:
        """Touched by a row that comes to these arguments, or leaves them."""
        from topics_protocol.touch_keys import membership_key  # noqa: PLC0415

        return membership_key(self.id, self._encoded(arguments))

    def projection_key(self, field: str, /, **arguments: object) -> str:
        """Touched by a row with these arguments of which this field changes."""
        from topics_protocol.touch_keys import projection_key  # noqa: PLC0415

        return projection_key(self.id, field, self._encoded(arguments))

    def _encoded(self, arguments: Mapping[str, object]) -> list[str]:
        from topics_protocol.touch_keys import encode_argument  # noqa: PLC0415

        if arguments.keys() != self.fields.keys():
            raise TypeError(f"the arguments are {', '.join(sorted(self.fields))}, each of them")
        encoded = []
        for field in sorted(self.fields):
            text = encode_argument(arguments[field], self.fields[field])
            if text is None:
                raise ValueError(f"{field}: {arguments[field]!r} is no {self.fields[field]}")
            encoded.append(text)
        return encoded


class Activated(msgspec.Struct, frozen=True, kw_only=True):
    """Templates that are matched from now on, and templates refused by a limit of the profile."""

    active: list[str]
    """Their ids."""
    denied: dict[str, str]
    """Why, by id."""


class Touched(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a wait ended."""

    cursor: str
    """Where the next wait goes on."""
    touched: bool = False
    """Whether one of the keys was touched; False when the time was over."""
    stale: bool = False
    """Whether the cursor was of another epoch, such as before a restart: run the query again."""
    effective_wait_kind: str = ""
    """The kind of the wait: the keys themselves, or the table in their place."""


class TouchState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The position of a stream's touches."""

    cursor: str
    epoch: str
    generation: int
    settled: bool
    """Whether all entries of the stream were processed."""
    active_templates: int
    active_waiters: int
    lag_source_offsets: int
    """The number of entries that wait to be processed."""


def get_touch_state(name: str, *, settle: bool = False, timeout_ms: int | None = None) -> Request[TouchState]:
    """Returns the cursor and the counters of touches; with `settle` after everything in the stream was processed."""
    query = f"?settle=flush&timeoutMs={_WAIT_MS if timeout_ms is None else timeout_ms}" if settle else ""
    wait_s = (_WAIT_MS if timeout_ms is None else timeout_ms) / 1000 if settle else 0.0
    return Request(method="GET", target=stream_path(name, "/touch/meta" + query), answer=TouchState, wait_s=wait_s)


def activate_templates(
    name: str, templates: Iterable[TouchTemplate], *, inactivity_ttl_ms: int | None = None
) -> Request[Activated]:
    """Activates templates, until no wait has used them for `inactivity_ttl_ms`."""
    given = {"templates": _templates(templates), "inactivityTtlMs": inactivity_ttl_ms}
    return Request(
        method="POST",
        target=stream_path(name, "/touch/templates/activate"),
        body=encode_values(given_only(given)),
        answer=Activated,
        read=_read_activated,
    )


def wait_for_touch(
    name: str,
    keys: Sequence[str] = (),
    *,
    cursor: str = NOW,
    tables: Sequence[str] = (),
    templates: Sequence[TouchTemplate] = (),
    timeout_ms: int | None = None,
    coarse: bool = False,
) -> Request[Touched]:
    """Waits until one of the keys is touched behind a cursor, for 30 seconds by default, at most two minutes.

    `tables` are entities of which every change counts. `templates` are those of the keys: they are activated, and
    without them a wait also ends at changes of other tables. With `coarse` every change of the tables counts.
    """
    given = {
        "cursor": cursor,
        "keys": [*keys, *map(_table_key, tables)],
        "timeoutMs": timeout_ms,
        "declareTemplates": _templates(templates) or None,
        "interestMode": "coarse" if coarse else None,
    }
    return Request(
        method="POST",
        target=stream_path(name, "/touch/wait"),
        body=encode_values(given_only(given)),
        answer=Touched,
        wait_s=(_WAIT_MS if timeout_ms is None else timeout_ms) / 1000,
    )


def _table_key(entity: str) -> str:
    from topics_protocol.touch_keys import table_key  # noqa: PLC0415

    return table_key(entity)


def _templates(templates: Iterable[TouchTemplate]) -> list[dict[str, Any]]:
    return [
        {
            "entity": one.entity,
            "fields": [{"name": field, "encoding": encoding} for field, encoding in one.fields.items()],
        }
        for one in templates
    ]


class _Outcome(msgspec.Struct, rename="camel"):
    template_id: str
    reason: str = ""


class _Outcomes(msgspec.Struct):
    activated: list[_Outcome]
    denied: list[_Outcome]


def _read_activated(response: Response) -> Activated:
    found = msgspec.json.decode(response.content, type=_Outcomes)
    return Activated(
        active=[one.template_id for one in found.activated],
        denied={one.template_id: one.reason for one in found.denied},
    )
