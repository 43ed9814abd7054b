import ctypes
import gc
import platform

import pytest

from topics.system import process


def test_glibc_accepts_every_value() -> None:
    assert process.tune_allocator() == (platform.libc_ver()[0] == "glibc")


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert process.tune_allocator() is False


def test_a_platform_without_a_loader_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> object:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert process.tune_allocator() is False


def test_the_collector_is_out_only_while_it_is_paused() -> None:
    assert gc.isenabled()
    with process.collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), process.collector_paused():
        raise ValueError
    assert gc.isenabled()
