import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.router_rules import Stamp
from topics.routers.router_frames import (
    FORWARD_HEAD,
    Forward,
    RoutersState,
    RouterState,
    decode_forward,
    decode_router,
    decode_routers,
    decode_unroute,
    encode_forward,
    encode_router,
    encode_routers,
    encode_unroute,
    forward_first_seq,
)

# One forward written by hand, so that neither side of the code can move the format unnoticed.
BY_HAND = bytes.fromhex(
    "0b00000000000000"  # router 11
    "0300000000000000"  # source topic 3
    "0900000000000000"  # cursor 9
    "1500000000000000"  # first seq 21
    "0100000000000000"  # one place stays empty
    "e803000000000000"  # ts 1000
    "0600000000000000"  # payload bytes 6
    "02000000"  # two copies
    "64000000"  # base 100
    "46000000"  # text of 70 bytes
    "02000000"  # two ranges
    "0e"  # the node and the tag are kept, stamped
    "02"  # two hops
    "0500"  # a stamp of 5 bytes
    "01"  # traits: tags
    "000000"
    "340a720a73"  # epoch 4, router r, source s
    "07000000000000000700000000000000"  # 7 to 7
    "09000000000000000900000000000000"  # 9 to 9
)
EXAMPLE = Forward(
    router_id=11, source_id=3, cursor=9, first_seq=21, lost=1, ts=1000, payload_bytes=6, count=2, base=100,
    text_length=70, traits=1, keep_node=True, keep_tag=True, stamp=Stamp("r", "s", 3, 4), hops=2,
    ranges=[(7, 7), (9, 9)],
)  # fmt: skip


def test_the_bytes_are_those_of_the_table() -> None:
    assert encode_forward(EXAMPLE) == BY_HAND


def test_a_forward_written_by_hand_is_read() -> None:
    found = decode_forward(memoryview(BY_HAND))
    assert found == EXAMPLE
    assert (found.last_seq, found.next_base) == (23, 171)
    assert forward_first_seq(memoryview(BY_HAND)) == 21


def test_only_empty_places_move_no_text() -> None:
    empty = msgspec.structs.replace(EXAMPLE, count=0, ranges=[], text_length=0, payload_bytes=0)
    found = decode_forward(memoryview(encode_forward(empty)))
    assert (found.last_seq, found.next_base) == (21, 100)


def test_by_value_the_copies_follow() -> None:
    by_value = msgspec.structs.replace(EXAMPLE, by_value=True, rows=bytes(24), text=b"x" * 70, stamp=None)
    assert decode_forward(memoryview(encode_forward(by_value) + by_value.text)) == by_value


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:-1],
        lambda body: body + b"x",
        lambda body: body[: FORWARD_HEAD.size - 1],
        lambda body: b"",
        lambda body: body[:56] + b"\x03" + body[57:],
        lambda body: body[:68] + b"\x03" + body[69:],
        lambda body: body[:72] + b"\x0f" + body[73:],
        lambda body: body[:74] + b"\x06" + body[75:],
    ],
)
def test_lengths_that_disagree(change: object) -> None:
    with pytest.raises(ValueError):
        decode_forward(memoryview(change(BY_HAND)))  # type: ignore[operator]


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(body: bytes) -> None:
    try:
        decode_forward(memoryview(body))
    except ValueError:
        pass


def test_routers_come_back() -> None:
    state = RouterState(7, "a->b", 3, True, False, "x", True, False, True, 9, 8, 1000, 4)
    assert decode_router(memoryview(encode_router(state))) == state
    part = RoutersState([state], [(1, 2, 3)])
    assert decode_routers(encode_routers(part)) == part
    assert decode_unroute(memoryview(encode_unroute(2**64 - 1))) == 2**64 - 1
