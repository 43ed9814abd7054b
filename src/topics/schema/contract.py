"""Stream contract: the schema registry and the profile of a stream, changed and stored atomically.

A profile installs a registry, and a crash must not leave one without the other. The encoding in the log and in
snapshots is

    u8 1 | msgpack [registry (`topics.schema.registry`), profile as JSON | nil for generic]

A reader ignores further fields at the end, and rejects another first byte.

All profiles by name, and the function that decodes one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from topics.model.errors import InvalidRequestError
from topics.schema.documents import (
    MAX_KEY_BYTES,
    MAX_PORTION,
    PORTION_BYTES,
    PORTION_COST,
    KeyExtractor,
    check_api_version,
    convert,
    decoder_for,
    encode,
    parse,
    parse_request,
    refuse_others,
)
from topics.schema.profiles.evlog import Evlog
from topics.schema.profiles.metrics import Metrics
from topics.schema.profiles.otel_traces import OtelTraces
from topics.schema.profiles.profile import Generic, Profile
from topics.schema.profiles.state_protocol import StateProtocol
from topics.schema.registry import Registry, decode_registry, encode_registry

PROFILES: dict[str, type[Profile]] = {
    str(kind.__struct_config__.tag): kind for kind in (Evlog, Generic, Metrics, OtelTraces, StateProtocol)
}


def parse_profile(document: Any) -> Profile:
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in PROFILES:
        raise InvalidRequestError(f"profile.kind must be {'|'.join(PROFILES)}", field="profile.kind")
    return convert("profile", document, PROFILES[kind]).normalized()


def encode_profile(profile: Profile) -> bytes:
    return encode(profile)


def decode_profile(raw: bytes) -> Profile:
    """Raises ValueError for data that no version of this server wrote."""
    try:
        return parse_profile(parse("profile", raw))
    except InvalidRequestError as error:
        raise ValueError(error.message) from None


_FORMAT = 1


class Contract(msgspec.Struct, frozen=True):
    registry: Registry = Registry()
    profile: Profile = Generic()


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    registry: bytes
    profile: bytes | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


def encode_contract(contract: Contract) -> bytes:
    profile = None if isinstance(contract.profile, Generic) else encode_profile(contract.profile)
    return bytes((_FORMAT,)) + _encode(_Stored(encode_registry(contract.registry), profile))


def decode_contract(raw: bytes | memoryview) -> Contract:
    """Raises ValueError for an unknown format."""
    if not len(raw) or raw[0] != _FORMAT:
        raise ValueError("a contract in a format that is not known")
    stored = _decode(raw[1:])
    profile = Generic() if stored.profile is None else decode_profile(stored.profile)
    return Contract(decode_registry(stored.registry), profile)


# Entry processing of an append: parse once, normalise, validate, extract routing keys.

Text = bytes | msgspec.Raw
"""The JSON text of an entry."""


class Taken(NamedTuple):
    """Entries in their stored form."""

    payloads: Sequence[Text]
    keys: Sequence[str | None] | None
    """The key of each payload; None if the key of the request, if any, applies to all."""


class Intake:
    """Processes the appended entries of one stream, compiled from its contract."""

    def __init__(self, contract: Contract) -> None:
        self._profile: Profile | None = None if isinstance(contract.profile, Generic) else contract.profile
        self._validator = None if _is_proved(contract) else contract.registry.validator
        key = contract.registry.routing_key
        self._extractor = None if key is None else KeyExtractor(key)

    @property
    def is_idle(self) -> bool:
        """Whether entries are stored without processing."""
        return self._profile is None and self._validator is None and self._extractor is None

    def check_bytes(self) -> None:
        """Raises InvalidRequestError for an append that is not JSON to a stream with a contract."""
        if not self.is_idle:
            raise InvalidRequestError("the entries of this stream are described: append them as application/json")

    def portion(self, raws: Sequence[Text]) -> int:
        """The number of entries, at least one, to process before the event loop serves other requests."""
        room = float(PORTION_BYTES)
        if self._validator is not None:
            room = min(room, PORTION_COST / self._validator.weight)
        count = 0
        for raw in raws[:MAX_PORTION]:
            room -= len(raw)
            if room < 0 and count:
                break
            count += 1
        return count

    def take(self, raws: Sequence[Text], *, now_ms: int, stream_key: str | None = None) -> Taken:
        """Returns the batch in its stored form.

        Raises InvalidRequestError for the whole batch. `stream_key` is the request's key.
        """
        if stream_key is not None and self._extractor is not None:
            raise InvalidRequestError("Stream-Key not allowed when routingKey is configured", field="Stream-Key")
        if self.is_idle:
            return Taken(raws, None)
        if self._profile is not None and self._validator is None and self._extractor is None:
            plain = self._profile.make_plain(raws)
            if plain is not None:
                return Taken(plain[0], None if stream_key is not None else _all_bounded(plain[1]))
        values = _parse_all(raws)
        payloads = raws
        if self._profile is not None:
            normalised = self._normalised(self._profile, values, now_ms)
            payloads = [
                raw if after is before else encode(after)
                for raw, before, after in zip(raws, values, normalised, strict=True)
            ]
            values = normalised
        if self._validator is not None:
            self._validator.check(values, payloads)
        if self._extractor is not None:
            return Taken(payloads, self._extractor.keys_of(values))
        if self._profile is None or stream_key is not None:
            return Taken(payloads, None)
        return Taken(payloads, _all_bounded([self._profile.key_of(value) for value in values]))

    @staticmethod
    def _normalised(profile: Profile, values: list[Any], now_ms: int) -> list[Any]:
        try:
            return [profile.normalise(index, value, now_ms) for index, value in enumerate(values)]
        except RecursionError:
            raise InvalidRequestError("entry: the JSON is nested too deeply") from None


def _is_proved(contract: Contract) -> bool:
    """Whether the schema is the profile's own, so that normalised entries are always valid."""
    canonical = contract.profile.canonical()
    versions = contract.registry.versions
    return canonical is not None and bool(versions) and versions[-1].schema == encode(canonical.schema)


def _parse_all(raws: Sequence[Text]) -> list[Any]:
    values: list[Any] = []
    decode = decoder_for(raws, bounded=True)
    try:
        for raw in raws:
            values.append(decode(raw))
    except (ValueError, RecursionError) as error:
        raise _unreadable(len(values), error, raws[len(values)]) from None
    return values


def _unreadable(index: int, error: Exception, raw: Text) -> InvalidRequestError:
    refusal = InvalidRequestError.from_decode("entry", error, bytes(raw))
    refusal.detail["index"] = index
    return refusal


def _all_bounded(keys: list[str | None]) -> list[str | None]:
    for index, key in enumerate(keys):
        if key is not None and len(key) * 4 > MAX_KEY_BYTES and len(key.encode()) > MAX_KEY_BYTES:
            raise InvalidRequestError(f"the routing key has more than {MAX_KEY_BYTES} bytes", index=index)
    return keys


# The profile resource: parsing, update and JSON form.

PROFILE_API_VERSION = "durable.streams/profile/v1"
_WHAT = "profileUpdate"


def parse_profile_update(body: bytes) -> Profile:
    """Parses the body of `POST _profile`; raises InvalidRequestError for errors that do not depend on the stream."""
    document = parse_request(_WHAT, body)
    refuse_others(_WHAT, document, frozenset(("apiVersion", "profile")))
    check_api_version(_WHAT, document, PROFILE_API_VERSION)
    return parse_profile(document.get("profile"))


def decide_profile(contract: Contract, profile: Profile, *, is_json: bool, empty: bool, next_seq: int) -> Contract:
    """Returns the contract after the update.

    A profile with a canonical schema needs an empty stream, or one that has this profile already; its registry stays
    when another profile replaces it.
    """
    if profile.needs_json and not is_json:
        raise InvalidRequestError(
            f"{profile.kind} profile requires application/json stream content-type", field="profile.kind"
        )
    registry, canonical = contract.registry, profile.canonical()
    if canonical is not None and type(profile) is not type(contract.profile):
        if not empty:
            raise InvalidRequestError(
                f"{profile.kind} profile must be installed before appending data", field="profile.kind"
            )
        registry = canonical.install(registry, next_seq)
    return Contract(registry, profile)


def profile_json(profile: Profile) -> bytes:
    """Returns the answer of `GET _profile`."""
    return encode({"apiVersion": PROFILE_API_VERSION, "profile": profile})
