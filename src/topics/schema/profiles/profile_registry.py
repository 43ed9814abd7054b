"""All profiles by their names, and the one way to read one."""

from typing import Any

from topics.model.errors import InvalidRequestError
from topics.schema.documents import convert, encode, parse
from topics.schema.profiles.evlog import Evlog
from topics.schema.profiles.metrics import Metrics
from topics.schema.profiles.otel_traces import OtelTraces
from topics.schema.profiles.profile import Generic, Profile
from topics.schema.profiles.state_protocol import StateProtocol

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
    """Raises ValueError for what no version of this server wrote."""
    try:
        return parse_profile(parse("profile", raw))
    except InvalidRequestError as error:
        raise ValueError(error.message) from None
