"""`tools.pin_hashes`: which files of a package index a pin names."""

import json

import pytest

from tools.pin_hashes import IndexedFile, files_of, is_of, is_pinned, pinned, runs_on, without_wheel

A, B, C = "a" * 64, "b" * 64, "c" * 64


def file(name: str) -> IndexedFile:
    return IndexedFile(name, A)


def test_files_are_read_from_both_forms_of_an_index() -> None:
    document = {"files": [{"filename": "x-1.0.tar.gz", "hashes": {"sha256": A}}, {"filename": "y", "hashes": {}}]}
    page = (
        f'<a href="https://files.example/x-1.0.tar.gz#sha256={A}" data-requires-python="&gt;=3">x</a><a href="y">y</a>'
    )
    assert files_of(json.dumps(document)) == files_of(page) == [IndexedFile("x-1.0.tar.gz", A)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x-1.0.tar.gz", True),
        ("x-1.0.zip", True),
        ("x-1.0-py3-none-any.whl", True),
        ("x-1.0-1-py2.py3-none-any.whl", True),
        ("x-1.0-py312-none-any.whl", True),
        ("x-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("x-1.0-cp39-abi3-musllinux_1_2_aarch64.whl", True),
        ("x-1.0-cp314-cp314-macosx_11_0_arm64.whl", True),
        ("x-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("x-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("x-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
        ("x-1.0-cp311-cp311-manylinux_2_28_s390x.whl", False),
        ("x-1.0-cp311-cp311-win_amd64.whl", False),
        ("x-1.0.exe", False),
    ],
)
def test_pins_name_sources_and_wheels_of_supported_machines(name: str, expected: bool) -> None:
    assert is_pinned(file(name)) is expected


def test_a_file_belongs_to_one_version() -> None:
    assert [is_of(file(name), "1.0") for name in ("x-1.0.tar.gz", "x-1.0-py3-none-any.whl", "x-1.0.1.tar.gz", "x")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_missing_wheels_are_named() -> None:
    assert without_wheel([file("x-1.0-py3-none-any.whl")]) == []
    some = [file(f"x-1.0-cp311-abi3-manylinux_2_28_{machine}.whl") for machine in ("x86_64",)]
    assert without_wheel(some) == [f"CPython 3.{minor} on aarch64" for minor in range(11, 15)]
    assert not runs_on(file("x-1.0-cp311-abi3-musllinux_1_2_x86_64.whl"), 11, "x86_64")


def test_hashes_are_replaced_and_everything_else_stays() -> None:
    text = f"# why\n-r other.txt\n\nx==1.0 \\\n    --hash=sha256:{C}\ny_z==2.0.post1\n"
    hashes = {("x", "1.0"): [B, A], ("y_z", "2.0.post1"): [C]}
    written = pinned(text, hashes)
    assert written == (
        "# why\n-r other.txt\n\n"
        f"x==1.0 \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n"
        f"y_z==2.0.post1 \\\n    --hash=sha256:{C}\n"
    )
    assert pinned(written, hashes) == written
