"""`topics consumer`: consumers, cursors of a topic that the server stores."""

from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import shown_time
from topics.cli.failures import CommandError, UsageError
from topics.cli.output import Output, Yes, confirm, fields, json_line, line, note, print_result, print_table
from topics.cli.server_connection import HERE, QUICK_S, Server, connected
from topics.cli.topic_options import Printer, RecordForm, Since, moment_of
from topics.system.clock import SystemClock
from topics_client import Gap, Record


def ls(
    topic: str | None = None,
    /,
    *,
    prefix: Annotated[str, Parameter(help="List only consumers of topics with this prefix.")] = "",
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """List consumers by topic and name, with their lag.

    Parameters
    ----------
    topic
        List only consumers of this topic.
    """
    with connected(server) as client:
        print_table(
            output,
            ("TOPIC", "CONSUMER", "SEQ", "LAG", "AGE", "COMMITTED", "BY"),
            (
                (
                    (
                        one.topic, one.consumer, one.seq, one.lag, f"{one.lag_ms / 1000:.0f}s",
                        "never" if one.committed_ms is None else shown_time(one.committed_ms), one.committed_by or "",
                    ),
                    one,
                )
                for one in client.all_consumers(topic, prefix=prefix, streams=topic is not None)
            ),
        )  # fmt: skip
    return 0


def show(topic: str, consumer: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show the cursor, the lag and the last commit of a consumer.

    Parameters
    ----------
    topic
        The name of the topic.
    consumer
        The name of the consumer.
    """
    with connected(server) as client:
        state = client.get_consumer(topic, consumer, streams=True)
    if output == "json":
        json_line(state)
    elif output == "raw":
        line(str(state.seq))
    else:
        reported = msgspec.to_builtins(state)
        reported.pop("performance", None)
        reported["losses"] = ", ".join(f"{gap.gap_from} to {gap.gap_to} ({gap.reason})" for gap in state.losses) or None
        del reported["lost"]
        for moment in ("created_ms", "committed_ms"):
            if reported[moment] is not None:
                reported[moment] = shown_time(reported[moment])
        fields((name.replace("_", " "), "none" if value is None else value) for name, value in reported.items())
    return 0


def read(
    topic: str,
    consumer: str,
    /,
    *,
    limit: Annotated[int, Parameter(help="The maximum number of records to print.")] = 100,
    commit: Annotated[bool, Parameter(negative="", show_default=False, help="Commit what was printed.")] = False,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Print the records after the committed cursor of a consumer.

    Parameters
    ----------
    topic
        The name of the topic.
    consumer
        The name of the consumer.
    """
    if limit < 1:
        raise UsageError(f"--limit is {limit}; accepted is a whole number of at least 1")
    printer = Printer(topic, output, None)
    with connected(server, QUICK_S) as client:
        answer = client.read_consumer(topic, consumer, limit=limit, include_tags=True, streams=True)
        items: list[Record | Gap] = [*([answer.tombstone] if answer.tombstone is not None else []), *answer.records]
        for item in items:
            printer.take(item)
        if commit and answer.next_from_seq:
            client.commit_consumer(topic, consumer, answer.next_from_seq, epoch=answer.epoch, streams=True)
        elif any(isinstance(item, Record) for item in items):
            note(f"not committed; `topics consumer commit {topic} {consumer} {answer.next_from_seq}` does")
    return 0


def commit(topic: str, consumer: str, seq: int, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Commit a cursor: everything up to a seq is processed. Creates a missing consumer.

    Parameters
    ----------
    topic
        The name of the topic.
    consumer
        The name of the consumer.
    seq
        The last processed seq.
    """
    with connected(server) as client:
        client.put_consumer(topic, consumer, streams=True)
        answer = client.commit_consumer(topic, consumer, seq, streams=True)
    stays = "" if answer.moved else "; the cursor stays, `topics consumer reset` moves it back"
    print_result(answer, output, f"{consumer} is at {answer.seq}, {answer.lag} behind{stays}", str(answer.seq))
    return 0


def reset(
    topic: str,
    consumer: str,
    /,
    *,
    to: Annotated[str | None, Parameter(help="The new cursor: earliest, latest or a seq.")] = None,
    since: Since = None,
    yes: Yes = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Move the cursor of a consumer back or forward.

    Parameters
    ----------
    topic
        The name of the topic.
    consumer
        The name of the consumer.
    """
    if (to is None) == (since is None):
        raise UsageError("give one of --to and --since")
    if to is not None and to not in ("earliest", "latest") and not (to.isascii() and to.isdigit()):
        raise UsageError(f"--to is {to!r}; accepted are earliest, latest and a seq")
    confirm(f"Move {consumer} of {topic} to {to or since}?", yes)
    with connected(server) as client:
        answer = client.commit_consumer(
            topic,
            consumer,
            None if to in (None, "latest") else 0 if to == "earliest" else int(to or 0),
            last=0 if to == "latest" else None,
            since=None if since is None else moment_of(since, SystemClock().now_ms()),
            force=True,
            streams=True,
        )
    print_result(answer, output, f"{consumer} is at {answer.seq}, {answer.lag} behind", str(answer.seq))
    return 0


def rm(
    topic: str,
    /,
    *consumers: Annotated[str, Parameter(required=True)],
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete consumers and their cursors; the records stay.

    Parameters
    ----------
    topic
        The name of the topic.
    consumers
        The names of the consumers.
    """
    missing = []
    with connected(server) as client:
        for consumer in consumers:
            answer = client.delete_consumer(topic, consumer, streams=True)
            if answer.deleted:
                print_result(answer, output, f"deleted {consumer}", consumer)
            else:
                missing.append(consumer)
    if missing:
        raise CommandError(
            f"consumer {', '.join(missing)} does not exist. List consumers with `topics consumer ls {topic}`"
        )
    return 0
