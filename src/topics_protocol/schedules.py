"""The messages of schedules, typed."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

CatchUpName = Literal["none", "one", "all"]


class ScheduleBody(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Fields that are left out keep their value, or get their default in a new schedule."""

    topic: str | None = None
    cron: str | None = None
    every_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    timezone: str | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Empty where it is left out."""
    tag: str | None = None
    catch_up: CatchUpName | None = None
    paused: bool | None = None


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule without its data. Times are null where there is none."""

    schedule: str
    topic: str
    cron: str | None
    every_ms: int | None
    timezone: str
    tag: str | None
    catch_up: CatchUpName
    paused: bool
    created_ms: int
    created_by: str
    next_due_ms: int | None
    last_due_ms: int | None
    last_run_ms: int | None
    last_seq: int | None
    runs: int
    error: str | None


class ScheduleOut(ScheduleSummary, frozen=True, kw_only=True):
    """A schedule."""

    data: msgspec.Raw


class SchedulePutAnswer(ScheduleOut, frozen=True, kw_only=True):
    created: bool


class ScheduleListAnswer(msgspec.Struct, frozen=True, kw_only=True):
    schedules: list[ScheduleSummary]
    next_cursor: str | UnsetType = UNSET


class ScheduleDropAnswer(msgspec.Struct, frozen=True, kw_only=True):
    schedule: str
    deleted: bool
