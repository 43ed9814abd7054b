import pytest

from topics.log import catalog
from topics.log.catalog import CatalogHead, CatalogRemoval, CatalogSegment, CatalogTopic
from topics.log.snapshot_files import decode_packed, decode_removals, encode_removals, pack, unpack

SEGMENT = CatalogSegment(1, 10, 400, 7, 5, 6, 2, True)
TOPIC = CatalogTopic(5, "orders", 5, b"{}", 12, 2, 1, [SEGMENT], [(11, 11)], [CatalogRemoval(7, [(1, 1)])])


def test_a_catalog_is_read_back() -> None:
    data = catalog.encode_catalog(7, 9, [catalog.encode_topic(TOPIC)])
    found = catalog.decode_catalog(data)
    assert found.head == CatalogHead(7, 9, 1, False, True)
    assert found.topics == [TOPIC]
    assert found.by_name() == {"orders": TOPIC}
    assert found.by_id() == {5: TOPIC}


def test_its_parts_can_be_written_again_as_they_are() -> None:
    data = catalog.encode_catalog(7, 9, [catalog.encode_topic(TOPIC)])
    head, parts = catalog.decode_parts(data)
    assert catalog.encode_catalog(head.number, head.now_ms, parts.values()) == data


@pytest.mark.parametrize("at", [0, 7, 8, 20, -1])
def test_every_byte_is_checked(at: int) -> None:
    data = bytearray(catalog.encode_catalog(7, 9, [catalog.encode_topic(TOPIC)]))
    data[at] ^= 1
    with pytest.raises(ValueError, match=r"not a catalog|wrong checksum"):
        catalog.decode_catalog(bytes(data))


def test_a_short_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a catalog"):
        catalog.decode_catalog(catalog.MAGIC)


def test_removals_are_read_back_and_none_take_no_room() -> None:
    assert encode_removals([]) == b""
    assert decode_removals(b"") == []
    ranges = [(1, 2), (5, 5), (2**40, 2**63)]
    part = encode_removals([(3, pack(ranges))])
    assert decode_removals(part) == [(3, ranges)]
    packed = decode_packed(part)
    assert [(number, unpack(one)) for number, one in packed] == [(3, ranges)]
    assert encode_removals(packed) == part
