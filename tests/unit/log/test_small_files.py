"""Checksums of small files: every flipped byte is found or harmless, and files of earlier releases are read."""

import msgspec
import pytest
from xxhash import xxh3_64_hexdigest

from topics.log.fs import (
    WrongChecksumError,
    add_checksum,
    check_json,
    read_checked,
    read_whole,
    replace_file,
    write_checked,
)
from topics.testing import FakeDisk

PATH = "note"
TEXTS = ["", "7", "0123456789abcdef 12 13", "7 0:1 1:3\n9 0:4 1:5", "restored"]


def flips(data: bytes) -> list[bytes]:
    return [data[:at] + bytes((data[at] ^ (1 << bit),)) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]


@pytest.mark.parametrize("text", TEXTS)
def test_checked_text_comes_back_and_no_flipped_bit_changes_it(text: str) -> None:
    disk = FakeDisk()
    write_checked(disk, PATH, text)
    assert read_checked(disk, PATH) == text
    whole = read_whole(disk, PATH)
    assert whole is not None
    for damaged in flips(whole):
        replace_file(disk, PATH, damaged)
        with pytest.raises(WrongChecksumError, match="note has a wrong checksum"):
            read_checked(disk, PATH)


def test_text_of_another_file_is_found_and_one_of_a_development_version_is_read() -> None:
    disk = FakeDisk()
    for folder in ("folder", "other"):
        disk.make_dirs(folder)
    write_checked(disk, "folder/seen", "7")
    data = read_whole(disk, "folder/seen")
    assert data is not None
    replace_file(disk, "folder/told", data)
    with pytest.raises(WrongChecksumError, match="told has a wrong checksum"):
        read_checked(disk, "folder/told")
    replace_file(disk, "other/seen", data)
    assert read_checked(disk, "other/seen") == "7"
    replace_file(disk, "folder/told", f"7\nxxh3 {xxh3_64_hexdigest(b'7')}\n".encode())
    assert read_checked(disk, "folder/told") == "7"


@pytest.mark.parametrize("cut", [1, 5, 22])
def test_text_that_was_cut_is_found(cut: int) -> None:
    disk = FakeDisk()
    write_checked(disk, PATH, TEXTS[2])
    whole = read_whole(disk, PATH)
    assert whole is not None
    replace_file(disk, PATH, whole[:-cut])
    if cut == 22:
        # All of the checksum is gone, which is how an earlier release wrote it: the text is whole.
        assert read_checked(disk, PATH).rstrip("\n") == TEXTS[2]
        return
    with pytest.raises(WrongChecksumError):
        read_checked(disk, PATH)


@pytest.mark.parametrize("text", [*TEXTS, "restored\n", "0\n"])
def test_text_of_an_earlier_release_or_of_an_operator_is_read_as_it_is(text: str) -> None:
    disk = FakeDisk()
    replace_file(disk, PATH, text.encode())
    assert read_checked(disk, PATH) == text
    assert read_checked(disk, "missing") == ""


@pytest.mark.parametrize("pretty", [False, True])
def test_flipped_bit_of_a_json_file_is_found_or_changes_no_value(pretty: bool) -> None:
    values = {"topic": "orders", "number": 12, "parts": [1, 2]}
    encoded = msgspec.json.encode(values)
    data = add_checksum(msgspec.json.format(encoded, indent=1) if pretty else encoded)
    assert check_json(encoded) == encoded
    whole = msgspec.json.decode(check_json(data))
    checksum = whole.pop("checksum")
    assert whole == values and len(checksum) == 16
    for damaged in flips(data):
        try:
            found = msgspec.json.decode(check_json(damaged))
        except ValueError:
            continue
        assert {name: found.get(name) for name in values} == values
