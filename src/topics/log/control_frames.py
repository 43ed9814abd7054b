"""The bodies of the small frames: everything that is logged but records. All numbers are little endian.

    CREATE   u64 epoch | u64 ts | u16 length of the name | name | config as JSON
    CONFIG   u64 head of the topic at that moment | config as JSON
    DROP     empty
    DELETE   u64 before seq (0 = none) | ranges: u64 first, u64 last, each inclusive, ascending, apart
    EVICT    u64 floor: every seq below it is gone | u8 reason (1 cap, 2 ttl, 3 none: the topic is complete)
    CEILING  u64 seq

A DELETE names seqs and not the selector that found them: what was decided is what is replayed, whatever else changed.

A topic that was of class ephemeral may hold records that a replay does not have, so that a replay could not tell what
its caps took: meanwhile every eviction is an EVICT frame. One with reason 3 and floor 0 says that a snapshot has all
its records by now; from then on a replay finds by itself what the caps take.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

_CREATE = Struct("<QQH")
_U64 = Struct("<Q")
_PAIR = Struct("<QQ")
_EVICT = Struct("<QB")
_CAP, _TTL, _COMPLETE = 1, 2, 3


class Created(NamedTuple):
    epoch: int
    ts: int
    name: str
    config: bytes


def encode_create(epoch: int, ts: int, name: str, config: bytes) -> bytes:
    encoded = name.encode()
    return _CREATE.pack(epoch, ts, len(encoded)) + encoded + config


def decode_create(body: memoryview) -> Created:
    epoch, ts, length = _CREATE.unpack_from(body, 0)
    end = _CREATE.size + length
    return Created(epoch, ts, str(body[_CREATE.size : end], "utf-8"), bytes(body[end:]))


def encode_config_change(head: int, config: bytes) -> bytes:
    return _U64.pack(head) + config


def decode_config_change(body: memoryview) -> tuple[int, bytes]:
    return _U64.unpack_from(body, 0)[0], bytes(body[_U64.size :])


def encode_delete(before_seq: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    return _U64.pack(before_seq) + b"".join([_PAIR.pack(first, last) for first, last in ranges])


def decode_delete(body: memoryview) -> tuple[int, list[tuple[int, int]]]:
    return _U64.unpack_from(body, 0)[0], list(_PAIR.iter_unpack(body[_U64.size :]))


class Evicted(NamedTuple):
    floor: int
    expired: bool
    complete: bool


def encode_evict(floor: int, expired: bool) -> bytes:
    return _EVICT.pack(floor, _TTL if expired else _CAP)


def encode_complete() -> bytes:
    return _EVICT.pack(0, _COMPLETE)


def decode_evict(body: memoryview) -> Evicted:
    floor, reason = _EVICT.unpack(body)
    return Evicted(floor, reason == _TTL, reason == _COMPLETE)


def encode_ceiling(seq: int) -> bytes:
    return _U64.pack(seq)


def decode_ceiling(body: memoryview) -> int:
    return int(_U64.unpack(body)[0])
