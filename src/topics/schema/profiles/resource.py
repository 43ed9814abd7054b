"""The profile of a stream as a resource: what a request asks for, what is decided, and what is shown."""

from topics.core.errors import InvalidRequestError
from topics.schema.contract import Contract
from topics.schema.documents import check_api_version, encode, parse_request, refuse_others
from topics.schema.profiles.base import Profile
from topics.schema.profiles.kinds import parse_profile

PROFILE_API_VERSION = "durable.streams/profile/v1"
_WHAT = "profileUpdate"


def parse_profile_update(body: bytes) -> Profile:
    """Reads the body of `POST _profile`, and refuses whatever needs no look at the stream to be refused."""
    document = parse_request(_WHAT, body)
    refuse_others(_WHAT, document, frozenset(("apiVersion", "profile")))
    check_api_version(_WHAT, document, PROFILE_API_VERSION)
    return parse_profile(document.get("profile"))


def decide_profile(contract: Contract, profile: Profile, *, is_json: bool, empty: bool, next_seq: int) -> Contract:
    """The contract after the update. A profile with a canonical schema goes onto an empty stream, or one that it is on
    already; what it had installed stays when another one takes its place."""
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
    """The profile as `GET _profile` shows it."""
    return encode({"apiVersion": PROFILE_API_VERSION, "profile": profile})
