"""Descriptors are divided before they are needed."""

import resource

import pytest

from topics.system.process import FILES, connections_within, raise_limit


@pytest.mark.parametrize(
    ("limit", "requested", "allowed"),
    [
        (20_000 + FILES, 20_000, 20_000),
        (1_000_000, 20_000, 20_000),
        (4096, 20_000, 4096 - FILES),
        (1024, 20_000, 512),
        (64, 20_000, 32),
        (1, 5, 1),
    ],
)
def test_connections_leave_the_files_their_part(limit: int, requested: int, allowed: int) -> None:
    assert connections_within(limit, requested) == allowed


class Limits:
    """Stands for the limits of a process."""

    def __init__(self, soft: int, hard: int, refuses: bool = False) -> None:
        self.soft, self.hard, self.refuses = soft, hard, refuses

    def getrlimit(self, which: int) -> tuple[int, int]:
        return self.soft, self.hard

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("not allowed to raise maximum limit")
        self.soft, self.hard = limits


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, 4096),
        (1024, 1_000_000, 21_024),
        (1024, resource.RLIM_INFINITY, 21_024),
        (1024, 1024, 1024),
        (50_000, 60_000, 50_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 21_024),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may(
    soft: int, hard: int, raised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limits.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limits.setrlimit)
    assert raise_limit(21_024) == raised
    assert limits.hard == hard, "what was taken away could not be had again"


def test_a_system_that_refuses_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(1024, 4096, refuses=True)
    monkeypatch.setattr(resource, "getrlimit", limits.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limits.setrlimit)
    assert raise_limit(21_024) == 1024
