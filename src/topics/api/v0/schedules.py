"""Schedules: PUT, GET, list, DELETE.

A key with prefixes must be allowed the schedule's name and its topic for every request.
"""

from typing import Any

import msgspec

from topics.api.app import Call, Operation, Parameter, Route
from topics.api.auth import Scope, check_found
from topics.api.v0.request_parsing import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    allowed_prefixes,
    decode_body,
    read_cursor,
    write_cursor,
)
from topics.model.errors import TopicsError
from topics.schedules.schedule_frames import CatchUp
from topics.schedules.schedules import ScheduleDeleted, ScheduleInfo, SchedulePut, ScheduleWish
from topics_protocol.schedules import (
    ScheduleBody,
    ScheduleDropAnswer,
    ScheduleListAnswer,
    ScheduleOut,
    SchedulePutAnswer,
    ScheduleSummary,
)

_encode = msgspec.json.Encoder().encode
_decode_put = msgspec.json.Decoder(ScheduleBody).decode


def put_schedule(call: Call) -> None:
    body = decode_body("schedule", _decode_put, call.exchange.body)
    if body.topic is not None:
        call.key.check(Scope(0), body.topic)
    _check_existing(call)
    # A schedule writes for as long as it exists.
    call.overrides = True
    # A copy: the text would keep the whole request alive.
    data = bytes(body.data)
    wish = ScheduleWish(
        topic=body.topic, cron=body.cron, every_ms=body.every_ms, timezone=body.timezone, data=data or None,
        tag=body.tag, catch_up=None if body.catch_up is None else CatchUp(body.catch_up), paused=body.paused,
    )  # fmt: skip

    def done(outcome: SchedulePut | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
            return
        info = outcome.info
        answer = SchedulePutAnswer(**_fields(info), data=msgspec.Raw(info.state.data), created=outcome.created)
        call.reply(201 if outcome.created else 200, _encode(answer))

    call.engine.schedules.put(call.topic, wish, call.key.name, done)


def get_schedule(call: Call) -> None:
    info = call.engine.schedules.info(call.topic)
    check_found(call.key, (info.topic,), "the schedule")
    call.reply(200, _encode(ScheduleOut(**_fields(info), data=msgspec.Raw(info.state.data))))


def list_schedules(call: Call) -> None:
    query, key = call.query, call.key
    size = call.number("page_size", PAGE_SIZE, PAGE_SIZE_MAX)
    after = read_cursor(query.get("cursor", ""))
    topic = query.get("topic")

    def requested(info: ScheduleInfo) -> bool:
        return topic in (None, info.topic) and key.may_touch(info.topic)

    found: list[ScheduleInfo] = []
    for prefix in allowed_prefixes(query.get("prefix", ""), key.prefixes):
        found += call.engine.schedules.list_all(prefix, after, size + 1 - len(found), requested)
        if len(found) > size:
            break
    cursor = write_cursor(found[size - 1].state.name) if len(found) > size else msgspec.UNSET
    page = [ScheduleSummary(**_fields(info)) for info in found[:size]]
    call.reply(200, _encode(ScheduleListAnswer(schedules=page, next_cursor=cursor)))


def delete_schedule(call: Call) -> None:
    _check_existing(call)

    def done(outcome: ScheduleDeleted | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            call.reply(200, _encode(ScheduleDropAnswer(schedule=outcome.schedule, deleted=outcome.deleted)))

    call.engine.schedules.delete(call.topic, done)


def _check_existing(call: Call) -> None:
    topic = call.engine.schedules.find_topic(call.topic)
    if topic is not None:
        check_found(call.key, (topic,), "the schedule")


def _fields(info: ScheduleInfo) -> dict[str, Any]:
    state = info.state
    return {
        "schedule": state.name,
        "topic": info.topic,
        "cron": state.cron or None,
        "every_ms": state.every_ms or None,
        "timezone": state.timezone,
        "tag": state.tag,
        "catch_up": state.catch_up.value,
        "paused": state.paused,
        "created_ms": state.created_ms,
        "created_by": state.created_by,
        "next_due_ms": state.next_due_ms or None,
        "last_due_ms": state.last_due_ms or None,
        "last_run_ms": state.last_run_ms or None,
        "last_seq": state.last_seq or None,
        "runs": state.runs,
        "error": None if info.error is None else ": ".join(info.error),
    }


_TEXT: dict[str, object] = {"type": "string"}
_WRITES = ("read_only", "disk_full", "shutting_down")

SCHEDULE_ROUTES = (
    Route(
        "GET", "/v0/schedules", list_schedules, Scope.READ,
        operation=Operation(
            "listSchedules", "Schedules without their data, by name.", {200: ScheduleListAnswer},
            query=(
                Parameter("prefix", _TEXT, "Only names with this prefix."),
                Parameter("topic", _TEXT, "Only schedules of this topic."),
                Parameter("page_size", {"type": "integer", "minimum": 0},
                    "Size of the page, clamped to 1 to 1000. Default: 100."),
                Parameter("cursor", _TEXT, "`next_cursor` of the previous page."),
            ),
        ),
    ),
    Route(
        "PUT", "/v0/schedules/{schedule}", put_schedule, Scope.WRITE, takes_body=True,
        operation=Operation(
            "putSchedule", "Create a schedule, or change the fields that are given.",
            {200: SchedulePutAnswer, 201: SchedulePutAnswer}, ("topic_not_found", "record_too_large", *_WRITES),
            ScheduleBody, True,
        ),
    ),
    Route(
        "GET", "/v0/schedules/{schedule}", get_schedule, Scope.READ,
        operation=Operation(
            "getSchedule", "A schedule with its last and its next run.", {200: ScheduleOut}, ("schedule_not_found",),
        ),
    ),
    Route(
        "DELETE", "/v0/schedules/{schedule}", delete_schedule, Scope.DELETE,
        operation=Operation(
            "deleteSchedule", "Delete a schedule; its jobs stay.", {200: ScheduleDropAnswer}, _WRITES,
        ),
    ),
)  # fmt: skip
"""The routes of schedules, with their requirements and answers."""
