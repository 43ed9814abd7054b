"""What a stream promises about its entries: its registry and its profile, changed and stored as one.

A profile brings a registry along, and a crash must not leave one without the other. In the log and in snapshots

    u8 1 | msgpack [registry (`topics.schema.registry`), profile as JSON | nil for generic]

A reader takes further fields at the end; another first byte it refuses.
"""

import msgspec

from topics.schema.profiles.base import Profile
from topics.schema.profiles.generic import Generic
from topics.schema.profiles.kinds import decode_profile, encode_profile
from topics.schema.registry import Registry, decode_registry, encode_registry

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
    """Raises ValueError for what no version of this server wrote."""
    if not len(raw) or raw[0] != _FORMAT:
        raise ValueError("a contract in a format that is not known")
    stored = _decode(raw[1:])
    profile = Generic() if stored.profile is None else decode_profile(stored.profile)
    return Contract(decode_registry(stored.registry), profile)
