"""Masks hide exactly the rows of their ranges."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.seq_ranges import contains, difference, intersection, union
from topics.spark.archive.data_files import Mask, chunks_of

RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=12).map(union)


@given(RANGES, st.lists(st.integers(1, 70)))
def test_a_mask_hides_what_its_ranges_hold(ranges: list[tuple[int, int]], seqs: list[int]) -> None:
    mask = Mask.of(ranges)
    assert mask.hides(np.array(seqs, dtype=np.int64)).tolist() == [contains(ranges, seq) for seq in seqs]
    table = pa.table({"seq": pa.array(seqs, pa.int64())})
    assert mask.shown(table)["seq"].to_pylist() == [seq for seq in seqs if not contains(ranges, seq)]


WIDE = st.lists(st.tuples(st.integers(1, 700), st.integers(1, 700)), max_size=12).map(union)


@given(WIDE)
def test_words_have_a_bit_for_each_hidden_seq(ranges: list[tuple[int, int]]) -> None:
    words, bits = Mask.of(ranges).words()
    assert len(set(words.tolist())) == len(words)
    found = {
        word * 64 + bit
        for word, flags in zip(words.tolist(), bits.tolist(), strict=True)
        for bit in range(64)
        if flags >> bit & 1
    }
    assert found == {seq for first, last in ranges for seq in range(first, last + 1)}


FAR = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 300)), max_size=8)


@given(FAR)
def test_chunks_have_a_bit_for_each_hidden_seq(parts: list[tuple[int, int]]) -> None:
    ranges = union([(first, first + more) for first, more in parts])
    chunks, flags = Mask.of(ranges).chunks()
    assert len(set(chunks.tolist())) == len(chunks)
    found = {
        (chunk * 64 + word) * 64 + bit
        for chunk, row in zip(chunks.tolist(), flags.tolist(), strict=True)
        for word, bits in enumerate(row)
        for bit in range(64)
        if bits >> bit & 1
    }
    assert found == {seq for first, last in ranges for seq in range(first, last + 1)}


@given(st.dictionaries(st.integers(1, 2**40), FAR.filter(len), max_size=5))
def test_chunks_of_many_are_those_of_each(parts: dict[int, list[tuple[int, int]]]) -> None:
    masks = {
        epoch: Mask.of(union([(first, first + more) for first, more in ranges])) for epoch, ranges in parts.items()
    }
    found = list(zip(*(column.tolist() for column in chunks_of(masks)), strict=True))
    alone = {epoch: mask.chunks() for epoch, mask in masks.items()}
    assert found == [
        (epoch, chunk, flags)
        for epoch, columns in alone.items()
        for chunk, flags in zip(*(column.tolist() for column in columns), strict=True)
    ]


@given(RANGES, st.integers(1, 60), st.integers(0, 40))
def test_a_part_of_a_mask_is_what_lies_in_it_and_travels_as_bytes(
    ranges: list[tuple[int, int]], first: int, length: int
) -> None:
    part = Mask.of(ranges).within(first, first + length)
    travelled = Mask.from_bytes(part.to_bytes())
    expected = intersection(ranges, [(first, first + length)])
    assert list(zip(travelled.firsts.tolist(), travelled.lasts.tolist(), strict=True)) == expected
    assert travelled.count() == sum(end - begin + 1 for begin, end in expected)


@given(RANGES, RANGES)
def test_masks_are_joined_and_cut_as_ranges_are(ours: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    one, two = Mask.of(ours), Mask.of(others)
    assert one.union(two).ranges() == union(ours, others)
    assert one.minus(two).ranges() == difference(ours, others)
    assert one.intersection(two).ranges() == intersection(ours, others)
    assert (one == two) == (ours == others)


@given(RANGES)
def test_packed_mask_round_trip(ranges: list[tuple[int, int]]) -> None:
    assert Mask.unpacked(Mask.of(ranges).packed()).ranges() == ranges


def test_scattered_deletes_are_packed_small_and_damage_is_reported() -> None:
    many = Mask.of([(number * 7, number * 7 + number % 3) for number in range(1, 100_000)])
    assert len(many.packed()) < 200_000
    with pytest.raises(ValueError, match="cannot be read"):
        Mask.unpacked(b"###")
