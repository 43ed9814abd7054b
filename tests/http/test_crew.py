"""The end of many tasks, on which a test of many tasks depends."""

import asyncio

import pytest

from tests.http import crew
from tests.http.crew import Crew


async def forever() -> None:
    await asyncio.Event().wait()


async def deaf(times: int) -> None:
    """Lets so many cancellations go by."""
    for _ in range(times):
        try:
            await forever()
        except asyncio.CancelledError:
            continue
    await forever()


async def fail() -> None:
    raise AssertionError("seen")


async def nothing() -> None:
    """Is through at once."""


def run(lead: object, *others: object, guard_s: float = 60.0) -> None:
    async def scene() -> None:
        team = Crew()
        for other in others:
            team.start(other())  # type: ignore[operator]
        await team.until(lead(), guard_s)  # type: ignore[operator]

    asyncio.run(scene())


def test_the_lead_ends_everyone() -> None:
    run(nothing, forever, forever)


@pytest.mark.parametrize(("lead", "other"), [(forever, fail), (fail, forever)])
def test_the_first_failure_ends_everyone_and_is_reported(lead: object, other: object) -> None:
    with pytest.raises(AssertionError, match="seen"):
        run(lead, other, forever)


def test_ignored_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_PATIENCE_S", 0.01)
    run(nothing, lambda: deaf(2))


def test_no_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no end after"):
        run(forever, guard_s=0.01)
