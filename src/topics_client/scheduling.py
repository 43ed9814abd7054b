"""Schedules: the calls. No function here waits."""

from typing import Literal

import msgspec

from topics_client.answers import ScheduleDropped, SchedulePage, SchedulePut, ScheduleState
from topics_client.requests import Request, given_only, named, query_of

_encode = msgspec.json.Encoder().encode


def put_schedule(
    name: str,
    topic: str | None = None,
    *,
    cron: str | None = None,
    every_ms: int | None = None,
    timezone: str | None = None,
    data: object = msgspec.UNSET,
    tag: str | None = None,
    catch_up: Literal["none", "one", "all"] | None = None,
    paused: bool | None = None,
) -> Request[SchedulePut]:
    """Creates a schedule that appends a job to a topic at its due times, or changes the fields that are given.

    A new schedule needs a topic, and `cron` or `every_ms`. An empty `tag` removes the tag. `catch_up` decides what
    missed due times get: one job for all of them, none, or a job each.
    """
    given = {
        "topic": topic,
        "cron": cron,
        "every_ms": every_ms,
        "timezone": timezone,
        "tag": tag,
        "catch_up": catch_up,
        "paused": paused,
    }
    body = given_only(given)
    if data is not msgspec.UNSET:
        body["data"] = data
    # Sent again after a lost answer it changes nothing.
    return Request(method="PUT", target=_path(name), body=_encode(body), answer=SchedulePut)


def get_schedule(name: str) -> Request[ScheduleState]:
    """A schedule with its last and its next run."""
    return Request(method="GET", target=_path(name), answer=ScheduleState)


def list_schedules(
    prefix: str = "", *, topic: str | None = None, page_size: int | None = None, cursor: str | None = None
) -> Request[SchedulePage]:
    """One page of schedules without their data, by name."""
    query = {"prefix": prefix or None, "topic": topic, "page_size": page_size, "cursor": cursor or None}
    return Request(method="GET", target="/v0/schedules" + query_of(query), answer=SchedulePage)


def delete_schedule(name: str) -> Request[ScheduleDropped]:
    """Deletes a schedule; its jobs stay."""
    return Request(method="DELETE", target=_path(name), answer=ScheduleDropped)


def _path(name: str) -> str:
    return f"/v0/schedules/{named(name, 'schedule')}"
