"""Headers as they came."""

from topics.http import Headers


def headers(*pairs: tuple[bytes, bytes]) -> Headers:
    return Headers.of(list(pairs))


def test_names_have_no_case() -> None:
    found = headers((b"Content-Type", b"text/plain"))
    assert found.get("content-type") == found.get("CONTENT-TYPE") == "text/plain"
    assert "Content-type" in found
    assert "Content" not in found


def test_the_first_of_a_name_is_the_one() -> None:
    found = headers((b"A", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"2"))
    assert found.get_all("b") == ["2", "2"]
    assert found.get("a") == "1"
    assert found.get_all("A") == ["1", "3"]
    assert found.get_list("a") == "1, 3"
    assert found.get_list("c") == ""
    assert found.get_all("c") == []


def test_blanks_after_a_value_are_not_part_of_it() -> None:
    assert headers((b"a", b"x y \t ")).get("a") == "x y"


def test_every_byte_is_a_character() -> None:
    value = bytes(range(0x80, 0x100))
    assert headers((b"a", value)).get("a") == value.decode("latin-1")


def test_the_default() -> None:
    assert headers().get("a") is None
    assert headers().get("a", "b") == "b"


def test_all_of_them() -> None:
    found = headers((b"A", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert list(found) == [("a", "1"), ("b", "2"), ("a", "3")]
    assert len(found) == 3
