"""Topic configuration: decoding, validation and resolution of the types of `topics_protocol.config`.

A request contains a `TopicConfigPatch`, in which every field is optional. `resolve_config` turns it into a
`TopicConfig`, in which every field is set and the fields are consistent. The engine, the log and every answer use only
the second, so the rules of resolution are only here.

Topic names: valid names, and names reserved for the server.
"""

import enum
import functools
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.model.errors import InvalidRequestError, TopicExistsIncompatibleError, quoted
from topics.model.limits import MAX_I32, MAX_U64, MIN_I32
from topics_protocol.config import Discard, Durability, TopicConfig, TopicConfigPatch, TopicType

# Used with `fullmatch` and without `$`, because `$` also matches before a trailing newline. The classes are explicit
# instead of `\w`, which matches letters of every script: names are compared byte by byte, never normalised.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")

_STREAM_NAME_BYTES_MAX = 1024

TOPIC_NAME_PATTERN = f"^{_TOPIC_NAME.pattern}$"
"""The pattern of topic names, for OpenAPI documents."""


def check_topic_name(name: str) -> str:
    """Returns `name` if it is a valid topic name, otherwise raises `InvalidRequestError`."""
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{quoted(name)} is not a topic name: 1 to 255 of A-Z a-z 0-9 . _ : - beginning with a letter or digit"
        )
    return name


def is_topic_name(name: str) -> bool:
    """Returns whether the name is valid in /v0; streams may have more names."""
    return _TOPIC_NAME.fullmatch(name) is not None


_OWN = "__ds/"
REGISTRY_STREAM = "__registry__"
METRICS_STREAM = "__stream_metrics__"
SYSTEM_STREAMS = (REGISTRY_STREAM, METRICS_STREAM)
"""The streams that the server writes for clients."""
_SYSTEM = frozenset(("__ds", "__stream_stats__", *SYSTEM_STREAMS))
PART_WORDS = frozenset(("pk", "touch"))
"""Segments of a /v1 path after which a subresource of the stream begins."""
NESTED_PART = ("_schema", "infer")
"""The only subresource of two segments that begins with `_`."""


SUBSCRIPTIONS_TOPIC = f"{_OWN}subscriptions"
TRANSACTIONS_TOPIC = f"{_OWN}transactions"
INTERNAL_TOPICS = (SUBSCRIPTIONS_TOPIC, TRANSACTIONS_TOPIC)
"""Topics in which the server stores internal state."""
SERVER_TOPICS = (*INTERNAL_TOPICS, *SYSTEM_STREAMS)
"""All topics that the server creates by itself."""


def is_own_name(name: str) -> bool:
    """Returns whether a topic is internal: neither protocol can name it, and no client may see it."""
    return name.startswith(_OWN)


def is_server_name(name: str) -> bool:
    """Returns whether the server writes the topic, for itself or for clients: it is not archived, moved to the cold
    tier, counted against limits or matched by patterns."""
    return is_own_name(name) or name in SYSTEM_STREAMS


def check_stream_name(name: str) -> None:
    """Returns `name` if it is a valid stream name: text without control characters that fits into a path."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= _STREAM_NAME_BYTES_MAX or not name.isprintable() or is_own_name(name):
        raise InvalidRequestError(
            f"{quoted(name)} is not a stream name: 1 to {_STREAM_NAME_BYTES_MAX} bytes of printable text", field="name"
        )


def is_reserved_name(name: str) -> bool:
    """Returns whether no stream can be created under this name: it is reserved for the server, or its /v1 path is a
    subresource of another stream.

    Only checked at creation. Existing streams of such a name stay.
    """
    if name in _SYSTEM or is_own_name(name):
        return True
    _, *behind = name.split("/")
    return bool(behind) and (
        behind[-1].startswith("_") or not PART_WORDS.isdisjoint(behind) or tuple(behind[-2:]) == NESTED_PART
    )


__all__ = [
    "DEFAULT_CONFIG", "Discard", "Durability", "TopicConfig", "TopicConfigPatch", "TopicType", "check_fields",
    "check_inline_config", "decode_config", "encode_config", "parse_config", "resolve_config",
]  # fmt: skip


class _WithConfig(msgspec.Struct):
    config: dict[str, msgspec.Raw] | None = None


_INLINE_DECODER = msgspec.json.Decoder(_WithConfig)

DEFAULT_CONFIG = TopicConfig()
"""The config object that all default topics share, so that a hundred thousand idle topics need one config."""

_U64_FIELDS = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "retain_for_consumers",
    "max_per_second",
    "max_leased",
    "result_retention_ms",
)
_CHOICES: dict[object, type[enum.Enum]] = {"type": TopicType, "discard": Discard, "durability": Durability}
_PATCH_DECODER = msgspec.json.Decoder(TopicConfigPatch)
_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FIELD_SHOWN_CHARS_MAX = 80
_ENCODER = msgspec.json.Encoder()
_DEAD_LETTER_SHOWN_CHARS_MAX = 255


def resolve_config(
    patch: TopicConfigPatch, topic_name: str, existing: TopicConfig | None, *, keeps_durability: bool = False
) -> TopicConfig:
    """Returns the config that results from `patch`; `existing` is the topic's current config, if any.

    A patch replaces the whole config: omitted fields return to their defaults. Only the type is kept, because it cannot
    change. With `keeps_durability` a patch without a class keeps the class as well.

    An unchanged config is returned as the same object, so callers can compare by identity.
    """
    _check_ranges(patch)
    _check_dead_letter(patch.dead_letter, topic_name)
    config = _filled(patch, TopicType.LOG if existing is None else existing.type)
    if keeps_durability and existing is not None and patch.durability is UNSET and patch.durable is UNSET:
        config = msgspec.structs.replace(config, durable=False, durability=existing.durability)
    if existing is not None and config.type is not existing.type:
        raise TopicExistsIncompatibleError(
            f"a {existing.type.value} cannot become a {config.type.value}; the type of a topic is fixed",
            topic=topic_name,
            existing_type=existing.type.value,
            requested_type=config.type.value,
        )
    return existing if config == existing else _shared(config)


def parse_config(raw: bytes, *, strict: bool = False) -> TopicConfigPatch:
    """Parses the patch in a JSON request body. A missing body is an empty patch.

    Unknown fields are ignored, as the protocol requires, except in strict mode.
    """
    if not raw:
        return TopicConfigPatch()
    try:
        patch = _PATCH_DECODER.decode(raw)
    except (ValueError, RecursionError) as error:
        raise _refusal(error) from error
    _check_ranges(patch)
    if strict:
        check_fields(_FIELDS_DECODER.decode(raw))
    return patch


def check_inline_config(raw: bytes) -> None:
    """Raises for an unknown field in the `config` of a decoded request body."""
    check_fields(_INLINE_DECODER.decode(raw).config or ())


def check_fields(given: Iterable[str]) -> None:
    """Raises for the first unknown field, which would silently have no effect."""
    known = TopicConfigPatch.__struct_fields__
    for field in given:
        if field not in known:
            import difflib  # noqa: PLC0415 - needed for an error only; importing a config should not load it

            near = difflib.get_close_matches(field, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            shown = field[:_FIELD_SHOWN_CHARS_MAX]
            meant = {"did_you_mean": near[0]} if near else {}
            raise InvalidRequestError(f"config: unknown field {quoted(field)}{hint}", field=shown, **meant)


def encode_config(config: TopicConfig) -> bytes:
    """Returns the JSON form, for the log and for answers."""
    return _ENCODER.encode(config)


@functools.lru_cache(maxsize=1024)
def decode_config(raw: bytes) -> TopicConfig:
    """Decodes a config written by `encode_config` of any version.

    Unknown fields are ignored and missing ones get their default, so fields can be added without a new format. Anything
    else raises `ValueError`: a config was validated before it was logged, so an error is damage, whose position only
    the reader of the file has.

    Most topics have one of a few configs, so each is decoded once and shared.
    """
    return _shared(_filled(_PATCH_DECODER.decode(raw), TopicType.LOG))


def _filled(patch: TopicConfigPatch, type_if_omitted: TopicType) -> TopicConfig:
    given: dict[str, Any] = {key: value for key, value in msgspec.structs.asdict(patch).items() if value is not UNSET}
    # `durable` is the older field; it is used only if `durability` is missing.
    durable = given.pop("durable", False)
    given.setdefault("durability", Durability.FSYNC if durable else Durability.DISK)
    given.setdefault("type", type_if_omitted)
    return TopicConfig(**given)


def _shared(config: TopicConfig) -> TopicConfig:
    return DEFAULT_CONFIG if config == DEFAULT_CONFIG else config


def _check_ranges(patch: TopicConfigPatch) -> None:
    # Checked here, because bounds of msgspec end at the signed 64-bit range.
    for field in _U64_FIELDS:
        value = getattr(patch, field)
        if value is not UNSET and not 0 <= value <= MAX_U64:
            raise InvalidRequestError(f"config field {field}: must be from 0 to {MAX_U64}", field=field)
    priority = patch.priority
    if isinstance(priority, int) and not MIN_I32 <= priority <= MAX_I32:
        raise InvalidRequestError(
            f"config field priority: must be null or from {MIN_I32} to {MAX_I32}", field="priority"
        )


def _check_dead_letter(dead_letter: str | UnsetType | None, topic_name: str) -> None:
    if not isinstance(dead_letter, str):
        return
    problem = None
    try:
        check_topic_name(dead_letter)
    except InvalidRequestError as error:
        problem = error.message
    if dead_letter == topic_name:
        # A failed job would return to the queue it failed in, forever.
        problem = "a topic cannot be its own dead letter topic"
    if problem is not None:
        shown = dead_letter[:_DEAD_LETTER_SHOWN_CHARS_MAX]
        raise InvalidRequestError(f"config field dead_letter: {problem}", field="dead_letter", dead_letter=shown)


def _refusal(error: Exception) -> InvalidRequestError:
    refusal = InvalidRequestError.from_decode("config", error)
    choices = _CHOICES.get(refusal.detail.get("field"))
    if choices is None:
        return refusal
    allowed = ", ".join(member.value for member in choices)
    return InvalidRequestError(f"{refusal.message}; it must be one of {allowed}", **refusal.detail)
