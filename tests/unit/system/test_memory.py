import ctypes
import platform

import pytest

from topics.system import memory


def test_glibc_accepts_every_value() -> None:
    assert memory.tune_allocator() == (platform.libc_ver()[0] == "glibc")


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert memory.tune_allocator() is False


def test_a_platform_without_a_loader_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> object:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert memory.tune_allocator() is False
