"""What is asked of the touch routes, as it comes from the wire."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from topics.core.errors import InvalidRequestError
from topics.schema.documents import convert, parse_request
from topics.schema.touch_keys import Encoding, key_id
from topics.schema.touches import Template

MAX_WAIT_KEYS = 1024
MAX_TIMEOUT_MS = 120_000
_DEFAULT_TIMEOUT_MS = 30_000
_Id = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A request with no other fields than it declares."""


class _Field(_Strict, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    encoding: Encoding


class _Template(_Strict, frozen=True, kw_only=True):
    entity: Annotated[str, Meta(min_length=1, max_length=256)]
    fields: Annotated[list[_Field], Meta(min_length=1, max_length=3)]


_Templates = Annotated[list[_Template], Meta(min_length=1, max_length=256)]
_Lifetime = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class _Activation(_Strict, frozen=True, kw_only=True):
    templates: _Templates
    inactivity_ttl_ms: _Lifetime | None = None


class _Wait(_Strict, frozen=True, kw_only=True):
    cursor: Annotated[str, Meta(min_length=1, max_length=64)]
    keys: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=MAX_WAIT_KEYS)] = []
    key_ids: Annotated[list[Annotated[int, Meta(ge=0, lt=2**32)]], Meta(max_length=MAX_WAIT_KEYS)] = []
    timeout_ms: Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_MS)] = _DEFAULT_TIMEOUT_MS
    interest_mode: Literal["fine", "coarse"] = "fine"
    exact: bool = False
    template_ids_used: Annotated[list[_Id], Meta(max_length=MAX_WAIT_KEYS)] = []
    declare_templates: Annotated[list[_Template], Meta(max_length=256)] = []
    inactivity_ttl_ms: _Lifetime | None = None


class Activation(msgspec.Struct, frozen=True):
    templates: list[Template]
    inactivity_ttl_ms: int | None


class WaitRequest(msgspec.Struct, frozen=True):
    cursor: str
    """`now`, or one that an answer gave."""
    keys: frozenset[int]
    timeout_ms: int
    coarse: bool
    """Whether any change of the tables will do."""
    templates: list[str]
    """The ids of the templates that the keys are of."""
    declared: list[Template]
    inactivity_ttl_ms: int | None


def parse_activation(body: bytes) -> Activation:
    given = convert("activation", parse_request("activation", body), _Activation)
    return Activation([_template(template) for template in given.templates], given.inactivity_ttl_ms)


def parse_wait(body: bytes) -> WaitRequest:
    given = convert("wait", parse_request("wait", body), _Wait)
    keys = frozenset((*map(key_id, given.keys), *given.key_ids))
    if not keys:
        raise InvalidRequestError("wait must have keys or keyIds", field="wait.keys")
    if len(given.keys) + len(given.key_ids) > MAX_WAIT_KEYS:
        raise InvalidRequestError(f"wait has more than {MAX_WAIT_KEYS} keys", field="wait.keys", max=MAX_WAIT_KEYS)
    declared = [_template(template) for template in given.declare_templates]
    used = list(dict.fromkeys((*given.template_ids_used, *(template.id for template in declared))))
    return WaitRequest(
        given.cursor, keys, given.timeout_ms, given.interest_mode == "coarse", used, declared, given.inactivity_ttl_ms
    )


def _template(given: _Template) -> Template:
    fields: dict[str, Any] = {field.name: field.encoding for field in given.fields}
    if len(fields) < len(given.fields):
        raise InvalidRequestError("a template asks by each of its fields once", field="fields")
    return Template.of(given.entity, fields)
