"""`topics ls`."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import counted, duration_ms, shown_bytes, shown_time
from topics.cli.failures import CommandError, UsageError
from topics.cli.output import (
    Output,
    Yes,
    batches,
    confirm,
    fields,
    flush,
    json_line,
    json_text,
    line,
    note,
    print_result,
    print_table,
    read_lines,
)
from topics.cli.server_connection import HERE, PATIENT_S, QUICK_S, TOLD_AFTER_S, Server, connected, wait_for
from topics.cli.topic_options import (
    Filter,
    From,
    Last,
    Printer,
    RecordForm,
    Since,
    Tag,
    cursor_of,
    given_config,
    meant,
    tag_match,
    with_config,
)
from topics.system.clock import SystemClock
from topics_client import Appended, Client, ConnectionFailed, NewRecord, RetryLater, TopicNotFound


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List topics, in the order of their names.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
    """
    head = ("TOPIC", "RECORDS", "BYTES", "FIRST", "LAST")
    with connected(server) as client:
        print_table(
            output,
            head,
            (
                ((topic.topic, topic.count, topic.bytes, topic.earliest_seq, topic.head_seq), topic)
                for topic in client.all_topics(prefix)
            ),
        )
    return 0


# `topics show`.


def show(topic: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show where a topic stands, and its config.

    Parameters
    ----------
    topic
        Its name.
    """
    with connected(server) as client:
        # To look at a topic is not to use it.
        state = client.get_topic(topic, touch=False)
    if output == "json":
        json_line(state)
        return 0
    if output == "raw":
        line(str(state.head_seq))
        return 0
    pairs: list[tuple[str, object]] = [
        ("topic", state.topic),
        ("type", state.type),
        ("records", state.count),
        ("bytes", f"{state.bytes} ({shown_bytes(state.bytes)})" if state.bytes >= 1024 else state.bytes),
        ("first seq", state.earliest_seq),
        ("last seq", state.head_seq),
        ("last write", shown_time(state.last_write_ts) or "never"),
        ("last read", shown_time(state.last_read_ts) or "never"),
    ]
    if state.queue is not None:
        pairs += [(name.replace("_", " "), count) for name, count in msgspec.to_builtins(state.queue).items()]
    for name, value in msgspec.to_builtins(state.config).items():
        # The class says it already.
        if name not in ("type", "durable"):
            shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
            pairs.append((f"--{name.replace('_', '-')}", shown))
    fields(pairs)
    return 0


# `topics create`.


def create(topic: str, /, *, output: Output = "table", server: Server = HERE, **flags: Any) -> int:
    """Create a topic.

    Parameters
    ----------
    topic
        Its name.
    """
    config = given_config(flags)
    with connected(server) as client:
        try:
            client.get_topic(topic, touch=False)
        except TopicNotFound:
            answer = client.put_topic(topic, config)
        else:
            # To put it again would take everything back to its default that is not named here.
            raise CommandError(f"there is a topic {topic} already: `topics set` changes its config")
    print_result(answer, output, f"created {answer.topic}", answer.topic)
    return 0


with_config(create, defaults=True)


# `topics set`.


def set_(topic: str, /, *, output: Output = "table", server: Server = HERE, **flags: Any) -> int:
    """Change the config of a topic. What is not named stays as it is.

    Parameters
    ----------
    topic
        Its name.
    """
    changes = given_config(flags)
    if not changes:
        raise UsageError("nothing is to be changed: name a field, such as --cap-records 1000")
    with connected(server) as client:
        # The server replaces a config as a whole, so what stays has to be said, too.
        kept = msgspec.to_builtins(client.get_topic(topic, touch=False).config)
        kept.pop("durable")
        answer = client.put_topic(topic, {**kept, **changes})
    print_result(answer, output, f"changed {answer.topic}: {', '.join(sorted(changes))}", answer.topic)
    return 0


with_config(set_, defaults=False)


# `topics rm`.


def rm(
    *topics: Annotated[str, Parameter(required=True)],
    if_empty: Annotated[bool, Parameter(negative="", show_default=False, help="Only where no record is left.")] = False,
    yes: Yes = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete topics with everything in them. On a terminal it asks first.

    Parameters
    ----------
    topics
        Their names.
    """
    confirm(f"delete {', '.join(topics)} with everything in it?", yes or if_empty)
    missing = []
    with connected(server) as client:
        for topic in topics:
            answer = client.delete_topic(topic, if_empty=if_empty)
            if answer.deleted:
                routers = f", and its routers {', '.join(answer.routers_removed)}" if answer.routers_removed else ""
                print_result(answer, output, f"deleted {topic}{routers}", topic)
            else:
                missing.append(topic)
    if missing:
        raise CommandError(f"there is no topic {', '.join(missing)}: `topics ls` lists those there are")
    return 0


# `topics append`.

Switch = Parameter(negative="", show_default=False)


def append(
    topic: str,
    /,
    *values: Annotated[str, Parameter(required=True, allow_leading_hyphen=True)],
    tag: Annotated[str | None, Parameter(help="What a deletion can match.")] = None,
    node: Annotated[str | None, Parameter(help="Who writes it: a reader of the same name does not get it.")] = None,
    delay: Annotated[str | None, Parameter(help="Queues: after how long the jobs can be claimed, such as 5m.")] = None,
    key: Annotated[str | None, Parameter(help="An idempotency key: the same one again appends nothing.")] = None,
    text: Annotated[bool, Switch, Parameter(help="Take each value or line as a text and not as JSON.")] = False,
    create: Annotated[bool, Parameter(help="Whether to create a topic that is not there.")] = True,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Append records to a topic, all values in one batch.

    Parameters
    ----------
    topic
        Its name.
    values
        What the records hold, as JSON; - reads one value a line from standard input, and appends them as they come.
    """
    delay_ms = 0 if delay is None else duration_ms(delay, "--delay")
    stream = list(values) == ["-"]
    if "-" in values and not stream:
        raise UsageError("- stands for standard input, and for all the values: give it alone")
    if stream and key is not None:
        raise UsageError("--key is for one batch, and standard input may be many")

    def send(client: Client, batch: list[msgspec.Raw]) -> Appended:
        records = [NewRecord(value, tag) for value in batch]
        return client.append_many(
            topic, records, node=node, idempotency_key=key, create=create, delay_ms=delay_ms, return_seqs=False
        )

    # Whoever pipes data in is in the middle of something when the server is restarted.
    with connected(server, PATIENT_S if stream else QUICK_S) as client:
        if not stream:
            checked = [
                json_text(value.encode("utf-8", "surrogateescape"), f"value {at}", is_text=text)
                for at, value in enumerate(values, 1)
            ]
            _show(send(client, checked), output)
            return 0
        count = 0
        try:
            for batch in _input(text):
                answer = send(client, batch)
                count += len(batch)
                if output != "table":
                    _show(answer, output)
                    flush()
        except BaseException:
            if count:
                note(f"{counted(count, 'record')} acknowledged before this")
            raise
        if output == "table":
            line(f"appended {counted(count, 'record')} to {topic}")
    return 0


def _input(is_text: bool) -> Iterator[list[msgspec.Raw]]:
    for numbered in read_lines(sys.stdin.fileno()):
        ready: list[msgspec.Raw] = []
        try:
            for number, content in numbered:
                ready.append(json_text(content, f"line {number}", is_text=is_text))
        finally:
            # A bad line does not take the good ones before it along.
            yield from batches(ready)


def _show(answer: Appended, output: str) -> None:
    first, last = answer.first_seq, answer.last_seq
    if output == "json":
        json_line(answer)
    elif output == "raw":
        for seq in range(first, last + 1):
            line(str(seq))
    else:
        seqs = str(first) if first == last else f"{first} to {last}"
        line(f"{seqs} in {answer.topic}" + (" (was there already)" if answer.deduped else ""))


# `topics read`.


def read(
    topic: str,
    /,
    *,
    from_: From = None,
    since: Since = None,
    last: Last = None,
    tag: Tag = None,
    filter: Filter = None,
    limit: Annotated[int | None, Parameter(help="Print at most so many.")] = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Print the records of a topic up to its end.

    Parameters
    ----------
    topic
        Its name.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}; accepted is a whole number of at least 1")
    wanted = meant(tag, filter)
    printer = Printer(topic, output, wanted.matches)
    with connected(server) as client:
        cursor = cursor_of(client, topic, from_, since, last, SystemClock().now_ms(), wanted)
        # No page larger than what is printed of it.
        page = limit if limit is not None and wanted.matches is None and limit < 1000 else 1000
        for item in client.follow(
            topic, cursor, wait_ms=0, include_tags=True, limit=page, deadline_s=PATIENT_S, filter=wanted.query
        ):
            printer.take(item)
            if printer.count == limit:
                break
    return 0


# `topics tail`.

_LAST = 10


def tail(
    topic: str,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", show_default=False, help="Wait for more, for ever.")
    ] = False,
    from_: From = None,
    since: Since = None,
    last: Last = None,
    tag: Tag = None,
    filter: Filter = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Print the last records of a topic, 10 unless told otherwise, and follow it.

    A server that is restarted is waited for, and what was lost meanwhile is told.

    Parameters
    ----------
    topic
        Its name.
    """
    if from_ is None and since is None and last is None:
        last = _LAST
    wanted = meant(tag, filter)
    printer = Printer(topic, output, wanted.matches)
    with connected(server) as client:
        cursor = cursor_of(client, topic, from_, since, last, SystemClock().now_ms(), wanted)
        if follow:
            _follow(client, topic, cursor, printer, wanted.query)
        else:
            for item in client.follow(
                topic, cursor, wait_ms=0, include_tags=True, deadline_s=PATIENT_S, filter=wanted.query
            ):
                printer.take(item)
    return 0


def _follow(client: Client, topic: str, cursor: int, printer: Printer, query: str | None) -> None:
    epoch: int | None = None
    while True:
        follower = client.follow(topic, cursor, epoch=epoch, include_tags=True, deadline_s=TOLD_AFTER_S, filter=query)
        try:
            for item in follower:
                printer.take(item)
                flush()
        except (ConnectionFailed, RetryLater) as error:
            wait_for(client, error)
        # Of another topic of the name, the cursor would leave out what that one has before it.
        cursor, epoch = follower.cursor, follower.epoch


# `topics delete`.


def delete(
    topic: str,
    /,
    *,
    before: Annotated[int | None, Parameter(help="Those whose seq is below this one.")] = None,
    tag: Annotated[str | None, Parameter(help="Those with this tag; a * at the end is any ending.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete records for good: by seq, by tag, or those that both mean.

    Parameters
    ----------
    topic
        Its name.
    """
    if before is None and tag is None:
        raise UsageError(f"say which records: --before SEQ, --tag TAG or both; `topics rm {topic}` deletes all of it")
    with connected(server) as client:
        answer = client.delete(topic, before_seq=before, match=None if tag is None else tag_match(tag))
    print_result(
        answer, output, f"deleted {counted(answer.deleted, 'record')}; {answer.count} left", str(answer.deleted)
    )
    return 0
