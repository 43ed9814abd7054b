from struct import pack_into

import pytest

from topics.log.frame import BLOCK_HEAD, LAYOUT_KEYS, LAYOUT_KEYS_WRITTEN, decode_block, encode_block_head
from topics.model.errors import NewerFormatError
from topics.model.records import ROW_BYTES, TRAIT_META, TRAIT_NODES, TRAIT_TAGS, words

TEXT = (
    b'{"$seq":9,"$ts":1700000000000,"$node":"n","data":1,"$tag":"x"},'
    b'{"$seq":10,"$ts":1700000000000,"$node":"n","data":"hi","meta":{"m":2}}'
)
ROWS = bytes.fromhex(
    "64000000"  # the first fragment starts at coordinate 100
    "00000000"  # no meta part
    "0b00"  # 11 bytes of ,"$tag":"x"
    "3100"  # 49 bytes of head
    "a3000000"  # the second at 163
    "0f000000"  # 15 bytes of ,"meta":{"m":2}
    "0000"  # no tag part
    "3200"  # 50 bytes of head: the seq has one digit more
)
HEAD = bytes.fromhex(
    "0900000000000000"  # first seq 9
    "0068e5cf8b010000"  # ts 1700000000000
    "0c00000000000000"  # 12 payload bytes: 1, "hi" and {"m":2}
    "02000000"  # 2 records
    "64000000"  # base 100
    "85000000"  # 133 bytes of text
    "01"  # layout
    "07"  # some record has a tag, a node, meta
    "0300"  # length of the key
    "6b6579"  # "key"
)
BLOCK = HEAD + ROWS + TEXT


def test_the_bytes_are_those_of_the_table() -> None:
    assert encode_block_head(9, 1_700_000_000_000, 12, 100, 7, b"key", ROWS, len(TEXT)) == HEAD + ROWS


def test_a_block_written_by_hand_is_read() -> None:
    parts = decode_block(memoryview(BLOCK))
    assert (parts.first_seq, parts.ts, parts.payload_bytes, parts.count) == (9, 1_700_000_000_000, 12, 2)
    assert (parts.base, parts.traits, parts.key) == (100, TRAIT_TAGS | TRAIT_NODES | TRAIT_META, "key")
    assert (parts.rows, parts.text) == (ROWS, TEXT)


def test_a_row_states_where_the_parts_of_a_fragment_are() -> None:
    row = words(ROWS)
    start, meta, last = row[3] - 100, row[4], row[5]
    tag, head = last & 0xFFFF, last >> 16
    fragment = TEXT[start:]
    assert fragment[:head].endswith(b'"data":')
    assert fragment[head : len(fragment) - 1 - tag - meta] == b'"hi"'
    assert fragment[len(fragment) - 1 - tag - meta : -1] == b',"meta":{"m":2}'


def test_no_key_and_an_empty_key_are_distinguished_by_nobody() -> None:
    # A key of no characters is the same as none: the length is all that is stored.
    parts = decode_block(memoryview(encode_block_head(1, 0, 1, 0, 0, b"", ROWS[:12], 3) + b"{1}"))
    assert parts.key is None


def test_a_key_is_text() -> None:
    key = "schlüssel"
    encoded = key.encode()
    parts = decode_block(memoryview(encode_block_head(1, 0, 1, 0, 0, encoded, ROWS[:12], 3) + b"{1}"))
    assert parts.key == key


KEYS_HEAD = HEAD[:36] + bytes.fromhex(
    "03"  # layout: keys of single records
    "07"
    "0000"  # no key of the whole batch
    "07000000"  # 7 bytes of keys
    "82"  # a map of two
    "a16100"  # "a": 0
    "a16201"  # "b": 1
)


def test_keys_of_single_records_are_as_the_table_states() -> None:
    keys = {"a": 0, "b": 1}
    assert encode_block_head(9, 1_700_000_000_000, 12, 100, 7, keys, ROWS, len(TEXT)) == KEYS_HEAD + ROWS
    parts = decode_block(memoryview(KEYS_HEAD + ROWS + TEXT))
    assert (parts.key, parts.rows, parts.text) == (keys, ROWS, TEXT)
    both = encode_block_head(9, 1_700_000_000_000, 12, 100, 7, keys, ROWS, len(TEXT), 77)
    assert both == KEYS_HEAD[:36] + b"\x04" + KEYS_HEAD[37:40] + (77).to_bytes(8, "little") + KEYS_HEAD[40:] + ROWS
    again = decode_block(memoryview(both + TEXT))
    assert (again.key, again.rows, again.text, again.written) == (keys, ROWS, TEXT, 77)


@pytest.mark.parametrize(
    "keys",
    [{}, {"a": 2}, {"a": -1}, {"a": 1, "b": 0}, {"a": 0, "b": 0}, {"a": 0, "b": 1, "c": 2}],
    ids=["none", "behind the end", "before the beginning", "out of order", "two of one record", "too many"],
)
def test_keys_of_records_that_are_not_there_are_refused(keys: dict[str, int]) -> None:
    body = encode_block_head(9, 1_700_000_000_000, 12, 100, 7, keys, ROWS, len(TEXT)) + TEXT
    with pytest.raises(ValueError, match="records that it does not have"):
        decode_block(memoryview(body))


@pytest.mark.parametrize("cut", [41, 43, 47, 50])
def test_keys_that_do_not_fit_are_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="lengths disagree"):
        decode_block(memoryview((KEYS_HEAD + ROWS + TEXT)[:cut]))


def test_rows_and_text_do_not_keep_the_log_file_alive() -> None:
    parts = decode_block(memoryview(BLOCK))
    assert type(parts.rows) is bytes
    assert type(parts.text) is bytes


def changed(offset: int, form: str, value: int) -> memoryview:
    data = bytearray(BLOCK)
    pack_into(form, data, offset, value)
    return memoryview(data)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (memoryview(BLOCK[: BLOCK_HEAD.size - 1]), "shorter than its head"),
        (memoryview(BLOCK[:-1]), "lengths disagree"),
        (memoryview(BLOCK + b"x"), "lengths disagree"),
        (changed(24, "<I", 0), "lengths disagree"),
        (changed(24, "<I", 3), "lengths disagree"),
        (changed(32, "<I", len(TEXT) - 1), "lengths disagree"),
        (changed(36, "<B", LAYOUT_KEYS), "lengths disagree"),
        (changed(36, "<B", LAYOUT_KEYS_WRITTEN), "lengths disagree"),
        (changed(36, "<B", 0), "unknown block layout 0"),
        (changed(38, "<H", 4), "lengths disagree"),
    ],
)
def test_lengths_that_disagree_are_refused(body: memoryview, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode_block(body)


def test_a_layout_of_a_later_version_is_named() -> None:
    with pytest.raises(NewerFormatError, match="a block of the unknown layout 5"):
        decode_block(changed(36, "<B", LAYOUT_KEYS_WRITTEN + 1))


def test_sizes_are_those_of_the_table() -> None:
    assert (BLOCK_HEAD.size, ROW_BYTES) == (40, 12)
    assert (TRAIT_TAGS, TRAIT_NODES, TRAIT_META) == (1, 2, 4)
