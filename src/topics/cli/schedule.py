"""`topics schedule`: schedules, which append jobs at due times."""

from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import duration_ms, shown_time
from topics.cli.failures import CommandError
from topics.cli.output import Output, fields, json_line, json_text, line, print_result, print_table
from topics.cli.server_connection import HERE, Server, connected

_MOMENTS = ("created_ms", "next_due_ms", "last_due_ms", "last_run_ms")


def ls(
    prefix: str = "",
    /,
    *,
    topic: Annotated[str | None, Parameter(help="List only schedules of this topic.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List schedules by name, with their next due time.

    Parameters
    ----------
    prefix
        List only schedules with this prefix.
    """
    with connected(server) as client:
        print_table(
            output,
            ("SCHEDULE", "TOPIC", "WHEN", "NEXT", "JOBS", "ERROR"),
            (
                (
                    (
                        one.schedule, one.topic, one.cron or f"every {(one.every_ms or 0) / 1000:g}s",
                        "paused" if one.paused else shown_time(one.next_due_ms) or "never", one.runs, one.error or "",
                    ),
                    one,
                )
                for one in client.all_schedules(prefix, topic=topic)
            ),
        )  # fmt: skip
    return 0


def show(schedule: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show the definition, the last and the next run of a schedule.

    Parameters
    ----------
    schedule
        The name of the schedule.
    """
    with connected(server) as client:
        state = client.get_schedule(schedule)
    if output == "json":
        json_line(state)
    elif output == "raw":
        line(str(state.next_due_ms or 0))
    else:
        reported = msgspec.to_builtins(state)
        reported.pop("performance", None)
        reported["data"] = msgspec.json.encode(state.data).decode()
        for moment in _MOMENTS:
            reported[moment] = shown_time(reported[moment]) or None
        fields((name.replace("_", " "), "none" if value is None else value) for name, value in reported.items())
    return 0


def put(
    schedule: str,
    topic: str | None = None,
    data: str | None = None,
    /,
    *,
    cron: Annotated[str | None, Parameter(help="The due times as a cron expression, such as '0 3 * * *'.")] = None,
    every: Annotated[str | None, Parameter(help="Instead: the time between jobs, such as 10m.")] = None,
    timezone: Annotated[
        str | None, Parameter(help="The IANA time zone of --cron.", show_default=lambda _: "UTC")
    ] = None,
    tag: Annotated[str | None, Parameter(help="The tag of the jobs; empty removes it.")] = None,
    catch_up: Annotated[
        Literal["none", "one", "all"] | None,
        Parameter(help="The jobs that missed due times get.", show_default=lambda _: "one"),
    ] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Create a schedule, or change what is given.

    Parameters
    ----------
    schedule
        The name of the schedule.
    topic
        The topic or queue of the jobs; required for a new schedule.
    data
        The data of the jobs as JSON.
    """
    every_ms = None if every is None else duration_ms(every, "--every")
    given: dict[str, Any] = (
        {} if data is None else {"data": json_text(data.encode("utf-8", "surrogateescape"), "data", is_text=False)}
    )
    with connected(server) as client:
        answer = client.put_schedule(
            schedule, topic, cron=cron, every_ms=every_ms, timezone=timezone, tag=tag, catch_up=catch_up, **given
        )
    what = "created" if answer.created else "changed"
    due = "paused" if answer.paused else f"next due {shown_time(answer.next_due_ms) or 'never'}"
    print_result(answer, output, f"{what} {answer.schedule}, {due}", answer.schedule)
    return 0


def pause(*schedules: Annotated[str, Parameter(required=True)], output: Output = "table", server: Server = HERE) -> int:
    """Pause schedules: nothing is due until they are resumed.

    Parameters
    ----------
    schedules
        The names of the schedules.
    """
    return _set_paused(schedules, True, output, server)


def resume(
    *schedules: Annotated[str, Parameter(required=True)], output: Output = "table", server: Server = HERE
) -> int:
    """Resume paused schedules. Due times during the pause get no jobs.

    Parameters
    ----------
    schedules
        The names of the schedules.
    """
    return _set_paused(schedules, False, output, server)


def _set_paused(schedules: tuple[str, ...], paused: bool, output: Output, server: Server) -> int:
    with connected(server) as client:
        for schedule in schedules:
            # Without this, an unknown name would be refused as an incomplete new schedule.
            client.get_schedule(schedule)
            answer = client.put_schedule(schedule, paused=paused)
            print_result(answer, output, f"{'paused' if paused else 'resumed'} {schedule}", schedule)
    return 0


def rm(*schedules: Annotated[str, Parameter(required=True)], output: Output = "table", server: Server = HERE) -> int:
    """Delete schedules and keep their jobs.

    Parameters
    ----------
    schedules
        The names of the schedules.
    """
    missing = []
    with connected(server) as client:
        for schedule in schedules:
            answer = client.delete_schedule(schedule)
            if answer.deleted:
                print_result(answer, output, f"deleted {schedule}", schedule)
            else:
                missing.append(schedule)
    if missing:
        raise CommandError(f"schedule {', '.join(missing)} does not exist. List schedules with `topics schedule ls`")
    return 0
