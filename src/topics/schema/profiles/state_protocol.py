"""The profile `state-protocol`: changes of rows, and control entries. Entries are validated and stored unchanged.

{"type", "key", "value"?, "old_value"?, "headers": {"operation": insert|update|delete, "txid"?, "timestamp"?}}
{"headers": {"control": snapshot-start|snapshot-end|reset, "offset"?}}

`txid` is a text that is not blank, `timestamp` a time of RFC 3339, and `offset` an offset of a stream.
"""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.schema.documents import convert
from topics.schema.profiles.profile import Profile, refusal
from topics_protocol.rfc3339 import rfc3339_to_unix_millis

_Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]

OPERATIONS: Final = frozenset(("insert", "update", "delete"))
CONTROLS: Final = frozenset(("snapshot-start", "snapshot-end", "reset"))
_CHANGE: Final = frozenset(("type", "key", "value", "old_value", "headers"))
_CHANGE_HEADERS: Final = frozenset(("operation", "txid", "timestamp"))
_CONTROL_HEADERS: Final = frozenset(("control", "offset"))
_OFFSET: Final = re.compile("-1|[0-7oil][0-9a-hjkmnp-tv-zoil]{25}", re.IGNORECASE | re.ASCII)
"""The start, or 26 digits of Crockford's base 32 below 2^128."""


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the touch settings; unknown fields are rejected."""


class TouchMemory(_Strict, frozen=True, kw_only=True):
    bucket_ms: _Positive = 100
    filter_pow2: Annotated[int, Meta(ge=10, le=30)] = 22
    k: Annotated[int, Meta(ge=1, le=16)] = 4
    pending_max_keys: _Positive = 100_000
    key_index_max_keys: _Positive = 32
    hot_key_ttl_ms: _Positive = 10_000
    hot_template_ttl_ms: _Positive = 10_000
    hot_max_keys: _Positive = 1_000_000
    hot_max_templates: _Positive = 4_096


class TouchTemplates(_Strict, frozen=True, kw_only=True):
    default_inactivity_ttl_ms: _Positive = 3_600_000
    last_seen_persist_interval_ms: _Positive = 300_000
    gc_interval_ms: _Positive = 60_000
    max_active_templates_per_entity: _Positive = 256
    max_active_templates_per_stream: _Positive = 2_048
    activation_rate_limit_per_minute: _Natural = 100


class Touch(_Strict, frozen=True, kw_only=True):
    """The settings of touches. A missing setting has its default, and is shown with it."""

    enabled: bool
    coarse_interval_ms: _Positive = 100
    touch_coalesce_window_ms: _Positive = 100
    on_missing_before: Literal["coarse", "skipBefore", "error"] = "coarse"
    lag_degrade_fine_touches_at_source_offsets: _Natural = 5_000
    lag_recover_fine_touches_at_source_offsets: _Natural = 1_000
    fine_touch_budget_per_batch: _Natural = 2_000
    fine_tokens_per_second: _Natural = 200_000
    fine_burst_tokens: _Natural = 400_000
    lag_reserved_fine_touch_budget_per_batch: _Natural = 200
    memory: TouchMemory = TouchMemory()
    templates: TouchTemplates = TouchTemplates()


class StateProtocol(Profile, frozen=True, kw_only=True, tag="state-protocol"):
    touch: dict[str, Any] | UnsetType = UNSET
    """Returns the public form: with every default while it is enabled, otherwise only `enabled`."""

    def normalized(self) -> "StateProtocol":
        if self.touch is UNSET:
            return self
        touch = convert("profile.touch", self.touch, Touch)
        return StateProtocol(touch=msgspec.to_builtins(touch) if touch.enabled else {"enabled": False})

    @property
    def touch_settings(self) -> Touch | None:
        """None while the touch routes are disabled."""
        if self.touch is UNSET or self.touch.get("enabled") is not True:
            return None
        return convert("profile.touch", self.touch, Touch)

    @property
    def needs_before(self) -> bool:
        """Whether a change must contain the previous value of its row."""
        return self.touch is not UNSET and self.touch.get("onMissingBefore") == "error"

    def normalise(self, index: int, value: Any, now_ms: int) -> Any:
        if not isinstance(value, dict):
            raise _refused(index, "an entry must be a JSON object")
        headers = value.get("headers")
        if not isinstance(headers, dict):
            raise _refused(index, "headers must be a JSON object", "headers")
        if "control" in headers:
            _check_control(index, value, headers)
        else:
            _check_change(index, value, headers)
            if self.needs_before and headers["operation"] != "insert" and not isinstance(value.get("old_value"), dict):
                raise _refused(index, "old_value is missing, and the profile demands it", "old_value")
        return value


def _check_control(index: int, value: dict[str, Any], headers: dict[str, Any]) -> None:
    _refuse_others(index, value, frozenset(("headers",)), "")
    _refuse_others(index, headers, _CONTROL_HEADERS, "headers.")
    if not isinstance(headers["control"], str) or headers["control"] not in CONTROLS:
        raise _refused(index, f"headers.control must be {'|'.join(sorted(CONTROLS))}", "headers.control")
    offset = headers.get("offset", "-1")
    if not isinstance(offset, str) or _OFFSET.fullmatch(offset) is None:
        raise _refused(index, "headers.offset must be an offset of a stream", "headers.offset")


def _check_change(index: int, value: dict[str, Any], headers: dict[str, Any]) -> None:
    _refuse_others(index, value, _CHANGE, "")
    _refuse_others(index, headers, _CHANGE_HEADERS, "headers.")
    for name in ("type", "key"):
        if not isinstance(value.get(name), str) or not value[name].strip():
            raise _refused(index, f"{name} must be a text that is not blank", name)
    operation = headers.get("operation")
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise _refused(index, f"headers.operation must be {'|'.join(sorted(OPERATIONS))}", "headers.operation")
    if operation != "delete" and "value" not in value:
        raise _refused(index, f"value is missing, and an {operation} needs one", "value")
    if "txid" in headers and (not isinstance(headers["txid"], str) or not headers["txid"].strip()):
        raise _refused(index, "headers.txid must be a text that is not blank", "headers.txid")
    if "timestamp" in headers and not _is_time(headers["timestamp"]):
        raise _refused(index, "headers.timestamp must be a time of RFC 3339", "headers.timestamp")


def _refuse_others(index: int, part: dict[str, Any], known: frozenset[str], where: str) -> None:
    for name in part:
        if name not in known:
            raise _refused(index, f"{where}{name[:80]} is not supported", f"{where}{name[:80]}")


def _is_time(value: Any) -> bool:
    try:
        rfc3339_to_unix_millis(value)
    except (ValueError, TypeError):
        return False
    return True


def _refused(index: int, problem: str, field: str | None = None) -> Exception:
    return refusal(index, "state-protocol", problem, field)
