import random
from typing import cast

import pytest
from xxhash import xxh3_64_intdigest

from topics.log import segment as module
from topics.log.segment import (
    CHUNK_BYTES,
    DELETED,
    SegmentHead,
    SegmentIndex,
    chunk_is_good,
    decode_head,
    encode_data,
    encode_index,
    join_texts,
)
from topics.model.errors import NewerFormatError

TEXT = (
    b'{"$seq":9,"$ts":1700000000000,"$node":"n","data":1,"$tag":"x"},'
    b'{"$seq":10,"$ts":1700000000000,"$node":"n","data":"hi","meta":{"m":2}}'
)
ROWS = bytes.fromhex("64000000" + "00000000" + "0b00" + "3100" + "a3000000" + "0f000000" + "0000" + "3200")
FLAGS = b"\x00\xd5"
DATA = (
    bytes.fromhex(
        "5450534547303031"  # magic "TPSEG001"
        "0500000000000000"  # topic 5
        "0600000000000000"  # epoch 6
        "0900000000000000"  # first seq 9
        "0b00000000000000"  # 11 payload bytes
        "0068e5cf8b010000"  # ts of the first record
        "0168e5cf8b010000"  # ts of the last record
        "02000000"  # 2 records
        "64000000"  # bias 100
        "85000000"  # 133 bytes of text
        "0600"  # length of the name
        "01"  # layout
        "07"  # traits
        "6f7264657273"  # "orders"
    )
    + TEXT
    + bytes.fromhex("10e70f550e11a8b5")  # XXH3-64 of the one chunk
    + bytes.fromhex("0bac07e0777f2cce")  # XXH3-64 of header, name and chunk checksums
    + FLAGS
)
HEAD = SegmentHead(5, 6, 9, 11, 1_700_000_000_000, 1_700_000_000_001, 2, 100, len(TEXT), 7, "orders")
INDEX = bytes.fromhex(
    "5450494458303031"  # magic "TPIDX001"
    "0500000000000000"  # topic 5
    "0900000000000000"  # first seq 9
    "02000000"  # 2 records
    "02000000"  # 2 blocks
    "02000000"  # 2 tags
    "06000000"  # 6 bytes of tag strings
    "64000000000000000b003100"  # the rows, as in the blocks
    "a30000000f00000000003200"
    "00000000"  # the first block begins with record 0
    "00000000"
    "0068e5cf8b010000"
    "01000000"  # the second with record 1
    "00000000"
    "0168e5cf8b010000"
    "0300000001000000"  # tag 0: strings up to 3, postings up to 1
    "0600000002000000"  # tag 1: strings up to 6, postings up to 2
    "226122"  # "a"
    "227822"  # "x"
    "01000000"  # "a" is on record 1
    "00000000"  # "x" on record 0
    "934428a74f32316b"  # XXH3-64 of everything before
)
BLOCKS = [(0, 1_700_000_000_000), (1, 1_700_000_000_001)]
TAGS = {b'"x"': [0], b'"a"': [1]}


def index_of(tags: dict[bytes, list[int]], blocks: list[tuple[int, int]] | None = None, count: int = 8) -> SegmentIndex:
    return SegmentIndex(memoryview(b"".join(encode_index(5, 9, bytes(12 * count), blocks or [(0, 1)], tags))))


def changed(data: bytes, place: int) -> memoryview:
    copy = bytearray(data)
    copy[place] ^= 1
    return memoryview(copy)


def test_the_data_bytes_are_those_of_the_table() -> None:
    assert b"".join(encode_data(HEAD, [TEXT], FLAGS)) == DATA


def test_a_data_file_written_by_hand_is_read() -> None:
    head = decode_head(memoryview(DATA))
    assert head == HEAD
    assert DATA[head.text_at : head.checksums_at] == TEXT
    assert DATA[head.flags_at :] == FLAGS
    assert head.file_bytes == len(DATA)


def test_the_index_bytes_are_those_of_the_table() -> None:
    assert b"".join(encode_index(5, 9, ROWS, BLOCKS, TAGS)) == INDEX


def test_an_index_written_by_hand_is_read() -> None:
    index = SegmentIndex(memoryview(INDEX))
    assert (index.topic_id, index.first_seq, index.count) == (5, 9, 2)
    assert index.rows.tobytes() == ROWS
    assert index.blocks() == BLOCKS
    assert [(index.tag_at(i), index.postings_at(i)) for i in range(index.tag_count)] == [(b'"a"', [1]), (b'"x"', [0])]


def test_flipping_a_flag_leaves_every_checksum_right() -> None:
    data = bytearray(DATA)
    data[HEAD.flags_at] = DELETED
    assert decode_head(memoryview(data)) == HEAD
    assert chunk_is_good(memoryview(data), HEAD, 0)


def test_every_chunk_of_a_long_text_has_its_own_checksum() -> None:
    text = bytes(CHUNK_BYTES) + b"\x01" * CHUNK_BYTES + b"\x02" * 100
    head = SegmentHead(5, 6, 9, 11, 1, 2, 1, 0, len(text), 0, "t")
    data = bytearray(b"".join(encode_data(head, [text], b"\x00")))
    assert head.chunks == 3
    assert len(data) == head.file_bytes
    data[head.text_at + CHUNK_BYTES] ^= 1
    assert [chunk_is_good(memoryview(data), head, chunk) for chunk in range(3)] == [True, False, True]


def test_a_text_of_exactly_one_chunk_has_one_checksum() -> None:
    head = SegmentHead(5, 6, 9, 11, 1, 2, 1, 0, CHUNK_BYTES, 0, "t")
    assert head.chunks == 1
    assert decode_head(memoryview(b"".join(encode_data(head, [bytes(CHUNK_BYTES)], b"\x00")))) == head


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (memoryview(DATA[:71]), "not a segment file"),
        (changed(DATA, 0), "not a segment file"),
        (memoryview(DATA[:-1]), f"{len(DATA) - 1} bytes long instead of {len(DATA)}"),
        (memoryview(DATA + b"\x00"), f"{len(DATA) + 1} bytes long instead of {len(DATA)}"),
        (changed(DATA, 8), "header has a wrong checksum"),
        (changed(DATA, 72), "header has a wrong checksum"),
        (changed(DATA, HEAD.checksums_at), "header has a wrong checksum"),
        (changed(DATA, HEAD.checksums_at + 8), "header has a wrong checksum"),
    ],
)
def test_a_data_file_that_is_not_what_was_written_is_refused(data: memoryview, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode_head(data)


def test_damage_in_the_text_is_left_to_whoever_reads_it() -> None:
    data = changed(DATA, HEAD.text_at)
    assert decode_head(data) == HEAD
    assert not chunk_is_good(data, HEAD, 0)


def test_a_layout_of_a_later_version_is_named() -> None:
    data = bytearray(DATA)
    data[70] = 2
    seal = HEAD.checksums_at + 8
    covered = bytes(data[: HEAD.text_at]) + bytes(data[HEAD.checksums_at : seal])
    data[seal : seal + 8] = xxh3_64_intdigest(covered).to_bytes(8, "little")
    with pytest.raises(NewerFormatError, match="unknown layout 2"):
        decode_head(memoryview(data))


def test_segment_of_a_later_version_is_named() -> None:
    with pytest.raises(NewerFormatError, match="a segment of the format TPSEG002"):
        decode_head(memoryview(b"TPSEG002" + bytes(100)))
    with pytest.raises(NewerFormatError, match="a segment index of the format TPIDX003"):
        SegmentIndex(memoryview(b"TPIDX003" + bytes(100)))


def test_damaged_digit_of_the_magic_is_no_later_version() -> None:
    with pytest.raises(ValueError, match="not a segment file"):
        decode_head(memoryview(b"TPSEG003" + DATA[8:]))
    with pytest.raises(ValueError, match="not a segment index"):
        SegmentIndex(memoryview(b"TPIDX003" + INDEX[8:]))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (memoryview(INDEX[:47]), "not a segment index"),
        (changed(INDEX, 0), "not a segment index"),
        (changed(INDEX, 8), "wrong checksum"),
        (changed(INDEX, len(INDEX) - 12), "wrong checksum"),
        (changed(INDEX, len(INDEX) - 1), "wrong checksum"),
        (memoryview(INDEX[:-1]), "wrong checksum"),
    ],
)
def test_an_index_that_is_not_what_was_written_is_refused(data: memoryview, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SegmentIndex(data)


@pytest.mark.parametrize(("place", "value"), [(24, 9), (28, 9), (32, 99), (36, 999), (36, 5)])
def test_an_index_whose_lengths_disagree_is_refused_whatever_its_checksum(place: int, value: int) -> None:
    data = bytearray(INDEX[:-8])
    data[place : place + 4] = value.to_bytes(4, "little")
    sealed = bytes(data) + xxh3_64_intdigest(bytes(data)).to_bytes(8, "little")
    with pytest.raises(ValueError, match="lengths disagree"):
        SegmentIndex(memoryview(sealed))


def test_the_time_of_a_record_is_that_of_its_block() -> None:
    index = index_of({}, [(0, 100), (3, 200), (4, 300)])
    assert [index.ts_at(i) for i in range(8)] == [100, 100, 100, 200, 300, 300, 300, 300]


@pytest.mark.parametrize(("deadline", "count"), [(100, 0), (101, 3), (200, 3), (201, 4), (300, 4), (301, 8)])
def test_records_before_a_deadline_are_counted_by_blocks(deadline: int, count: int) -> None:
    assert index_of({}, [(0, 100), (3, 200), (4, 300)]).count_before(deadline) == count


def test_blocks_of_the_same_time_count_together() -> None:
    assert index_of({}, [(0, 100), (3, 100), (4, 300)]).count_before(200) == 4


@pytest.mark.parametrize(
    ("text", "place"),
    [(b"", 0), (b'"a"', 0), (b'"a', 0), (b'"b', 1), (b'"b"', 1), (b'"bb"', 2), (b'"c"', 2), (b'"d"', 3)],
)
def test_the_first_tag_not_below_a_text(text: bytes, place: int) -> None:
    assert index_of({b'"a"': [0], b'"b"': [1, 5], b'"c"': [2]}).first_tag_from(text) == place


def test_postings_of_each_tag_are_its_own() -> None:
    index = index_of({b'"b"': [1, 5], b'"a"': [0], b'"c"': [2, 3, 4]})
    assert [index.postings_at(place) for place in range(3)] == [[0], [1, 5], [2, 3, 4]]


def test_a_segment_without_tags_has_an_empty_tag_table() -> None:
    index = index_of({})
    assert index.tag_count == 0
    assert index.first_tag_from(b'"a"') == 0


def test_a_name_may_be_any_utf_8() -> None:
    head = SegmentHead(5, 6, 9, 11, 1, 2, 1, 0, 2, 0, "größe")
    assert decode_head(memoryview(b"".join(encode_data(head, [b"{}"], b"\x00")))) == head


@pytest.mark.parametrize(
    "cuts", [[1], [CHUNK_BYTES - 1], [CHUNK_BYTES], [CHUNK_BYTES + 1], [5, 9, 2 * CHUNK_BYTES], [0, 0, 3 * CHUNK_BYTES]]
)
def test_a_text_in_pieces_is_the_text(cuts: list[int]) -> None:
    text = bytes(range(251)) * 800
    head = SegmentHead(5, 6, 9, 11, 1, 2, 1, 0, len(text), 0, "t")
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert b"".join(encode_data(head, pieces, b"\x00")) == b"".join(encode_data(head, [text], b"\x00"))


def test_texts_are_joined_in_pieces_that_nobody_has_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """To join 64 MiB in one go kept the interpreter from everyone else, and the file is the same either way."""
    monkeypatch.setattr(module, "_JOINED_BYTES", 3 * CHUNK_BYTES)
    rng = random.Random(5)
    for _ in range(30):
        sizes = [
            rng.choice((10, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, 4 * CHUNK_BYTES)) for _ in range(rng.randrange(1, 40))
        ]
        texts = [rng.randbytes(size) for size in sizes]
        views = [cast(bytes, memoryview(text)) if rng.random() < 0.3 else text for text in texts]
        pieces = join_texts(views)
        assert b"".join(pieces) == b",".join(texts)
        assert all(len(piece) <= 4 * CHUNK_BYTES for piece in pieces)
        assert [piece for piece in pieces if len(piece) > 3 * CHUNK_BYTES + 40] == [
            view for view in views if len(view) == 4 * CHUNK_BYTES
        ]
        assert b"".join(encode_data(HEAD, pieces, FLAGS)) == b"".join(encode_data(HEAD, [b",".join(texts)], FLAGS))
