"""A long array read in portions is what one parser makes of it in one go, and no step is long."""

import json
import random

import msgspec
import pytest

from topics.model.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError, TopicsError
from topics.wire import json_array_reader
from topics.wire.json_array_reader import BESIDE_BYTES, JsonArrayReader, Kind, Scan, find_array

decode = msgspec.json.Decoder(list[msgspec.Raw]).decode
TEXTS = ["", "}", "},", "},{", "],[", '",', "\\", '\\"', '"', "a,b", "é", "\u2028", "x" * 40, "}]", "]}"]


def kind(max_items: int = 10_000, max_item_bytes: int = 100_000) -> Kind:
    return Kind(
        "append", ".records", max_items, max_item_bytes, lambda: BatchTooLargeError("many"),
        lambda index: RecordTooLargeError("large", index=index),
    )  # fmt: skip


def read(text: bytes, of: Kind | None = None, start: int = 1) -> tuple[list[bytes], int]:
    """Returns the portions of an array, and its end."""
    reader = JsonArrayReader(memoryview(text), start, decode, of or kind())
    for _ in range(100_000):
        if reader.step():
            return [bytes(item) for item in reader.items], reader.end
    raise AssertionError("it never ends")


def value(rng: random.Random, depth: int = 0) -> object:
    roll = rng.random()
    if depth < 6 and roll < 0.25:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 6 and roll < 0.5:
        return {rng.choice(TEXTS) + str(n): value(rng, depth + 1) for n in range(rng.randrange(4))}
    return rng.choice([rng.choice(TEXTS), rng.randrange(1000), None, True, -1.5e9])


def arrays(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        values = [value(rng) for _ in range(rng.randrange(30))]
        separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n", " : ")])
        found.append(json.dumps(values, separators=separators, ensure_ascii=rng.random() < 0.5).encode())
    return found


@pytest.fixture(params=[8, 50, 400])
def portion_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr(json_array_reader, "PORTION_BYTES", size)
    return size


def test_portions_are_what_one_parser_makes_of_it(portion_bytes: int, seed: int) -> None:
    for text in arrays(seed, 300):
        assert read(text) == ([bytes(item) for item in decode(text)], len(text) - 1)
        assert read(text + b', "x":[1,{}]}')[1] == len(text) - 1, "what follows the array is not read"


def test_invalid_arrays_are_refused(portion_bytes: int, seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for text in arrays(seed, 600):
        if len(text) < 4:
            continue
        place = rng.randrange(1, len(text))
        broken = (
            text[:place] + rng.choice([b"", b",", b'"', b"]", b"}", b"{", b"\\", b"\xff", b"1"]) + text[place + 1 :]
        )
        try:
            expected = [bytes(item) for item in decode(broken)]
            broken.decode()
        except (ValueError, RecursionError):
            # The array may end before the error, which the check of the rest of the body finds then.
            try:
                items, end = read(broken)
                assert broken[end + 1 :].strip(b" \n"), (broken, items)
            except InvalidRequestError:
                refused += 1
        else:
            assert read(broken)[0] == expected
    assert refused > 50


def test_no_step_parses_more_than_a_portion_or_one_element() -> None:
    """The measure of a step is the bytes it gives the parser and the brackets it counts, not a time."""
    parsed: list[int] = []

    def counting(text: bytes) -> list[msgspec.Raw]:
        parsed.append(len(text))
        return decode(text)

    element = b'{"data":[' + b'{"a":[],"b":"},{"},' * 50 + b"1]}"
    text = b"[" + b",".join([element] * 3000) + b"]"
    reader = JsonArrayReader(memoryview(text), 1, counting, kind())
    steps = 1
    while not reader.step():
        steps += 1
    assert len(reader.items) == 3000
    assert max(parsed) <= json_array_reader.PORTION_BYTES + len(element) + 2
    assert steps >= len(text) // json_array_reader.PORTION_BYTES


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b"[]," * 100_000, b'"' + b"\\\\" * 400_000])
def test_no_step_of_counting_is_long(deep: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    matches: list[int] = []
    real = json_array_reader._match_end

    def counted(pattern: object, text: bytes, pos: int = 0) -> int:
        matches[-1] += 1
        assert len(text) <= json_array_reader.PORTION_BYTES
        return real(pattern, text, pos)  # type: ignore[arg-type]

    monkeypatch.setattr(json_array_reader, "_match_end", counted)
    scan = Scan(memoryview(b"[" + deep), 1)
    for _ in range(10_000):
        matches.append(0)
        if scan.step() and scan.pos >= len(deep):
            break
        scan.pos += scan.pos < len(deep) and scan.body[scan.pos] == ord(",")
    assert max(matches) <= 2_000


def test_an_element_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    text = b"[1,2," + b'"' + b"x" * 500_000 + b'"]'
    with pytest.raises(RecordTooLargeError) as refused:
        read(text)
    assert refused.value.detail["index"] == 2
    with pytest.raises(InvalidRequestError, match="byte"):
        read(b"[1,?," + b'"' + b"x" * 500_000 + b'"]')


def test_too_many_elements_are_refused() -> None:
    with pytest.raises(BatchTooLargeError):
        read(b"[" + b"1," * 200_000 + b"1]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" + b'{"a":1},' * 20_000 + b'{"a" 1}]', "byte 160006"),
        (b"[" + b"1," * 9_000 + b'"\xff",1]', "UTF-8"),
        (b"[" + b"1," * 9_000, "truncated"),
        (b"[" + b"1," * 9_000 + b"]", "malformed"),
        (b"[" + b"1," * 9_000 + b'"\\', "truncated"),
    ],
)
def test_errors_state_where_in_the_whole_it_is(text: bytes, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        read(text, kind(100_000))


def test_errors_of_types_name_the_element() -> None:
    records = msgspec.json.Decoder(list[int]).decode
    text = b"[" + b"1," * 70_000 + b'"x",1]'
    reader = JsonArrayReader(memoryview(text), 1, records, kind(100_000))
    with pytest.raises(InvalidRequestError) as refused:
        while not reader.step():
            pass
    assert refused.value.detail["field"] == "records[70000]"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"records":[1]}', 12),
        (b' {\n"node" : "records", "records" :\t[1]}', 36),
        (b'{"config":{"records":[2]},"x":[[]],"records":[1]}', 46),
        (b'{"records":{}}', 0),
        (b'{"a":"records","b":[', 0),
        (b"[1,2]", 0),
        (b"", 0),
        (b'{"a":1}', 0),
        (b'{"a":"' + b"x" * BESIDE_BYTES + b'","records":[1]}', 0),
    ],
)
def test_the_array_of_a_member_is_found(text: bytes, found: int) -> None:
    assert find_array(memoryview(text), b"records") == found


def test_nothing_of_it_raises_anything_else(portion_bytes: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2_000):
        text = bytes(rng.choice(b'[]{},:"\\1a \xc3') for _ in range(rng.randrange(80)))
        find_array(memoryview(text), b"records")
        try:
            read(b"[" + text, kind(50, 30))
        except TopicsError:
            continue
