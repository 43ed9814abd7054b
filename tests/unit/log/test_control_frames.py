import struct

import pytest

from topics.log import frame

NAME = "a:b"
CONFIG = b'{"ttl_ms":5}'


def test_create_is_epoch_ts_name_and_config() -> None:
    body = bytes.fromhex("0700000000000000" + "0068e5cf8b010000" + "0300") + b"a:b" + CONFIG
    assert frame.encode_create(7, 1_700_000_000_000, NAME, CONFIG) == body
    assert frame.decode_create(memoryview(body)) == frame.Created(7, 1_700_000_000_000, NAME, CONFIG)


def test_config_is_the_head_and_the_config() -> None:
    body = bytes.fromhex("0900000000000000") + CONFIG
    assert frame.encode_config_change(9, CONFIG) == body
    assert frame.decode_config_change(memoryview(body)) == (9, CONFIG)


def test_delete_is_a_bound_and_ranges_with_both_ends() -> None:
    body = bytes.fromhex("0500000000000000" + "0700000000000000" + "0700000000000000")
    body += bytes.fromhex("0900000000000000" + "0c00000000000000")
    assert frame.encode_delete(5, [(7, 7), (9, 12)]) == body
    assert frame.decode_delete(memoryview(body)) == (5, [(7, 7), (9, 12)])


def test_delete_without_ranges_is_the_bound_alone() -> None:
    assert frame.encode_delete(5, []) == bytes.fromhex("0500000000000000")
    assert frame.decode_delete(memoryview(frame.encode_delete(5, []))) == (5, [])


@pytest.mark.parametrize(("expired", "reason"), [(False, "01"), (True, "02")])
def test_evict_is_a_floor_and_a_reason(expired: bool, reason: str) -> None:
    body = bytes.fromhex("0300000000000000" + reason)
    assert frame.encode_evict(3, expired) == body
    assert frame.decode_evict(memoryview(body)) == (3, expired, False)


def test_ceiling_is_a_seq() -> None:
    body = bytes.fromhex("0101000000000000")
    assert frame.encode_ceiling(257) == body
    assert frame.decode_ceiling(memoryview(body)) == 257


def test_numbers_use_the_whole_of_64_bits() -> None:
    most = 2**64 - 1
    assert frame.decode_ceiling(memoryview(frame.encode_ceiling(most))) == most
    assert frame.decode_delete(memoryview(frame.encode_delete(most, [(most, most)]))) == (
        most,
        [(most, most)],
    )


def test_half_a_range_is_refused() -> None:
    with pytest.raises(struct.error):
        frame.decode_delete(memoryview(frame.encode_delete(1, [(2, 3)]))[:-8])
