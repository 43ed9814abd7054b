"""Commands on topics: `topics ls`, `show`, `create`, `set`, `rm`, `append`, `read`, `tail` and `delete`."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from topics.cli.arguments import Switch, counted, date_ms, duration_ms, shown_bytes, shown_time
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
from topics.cli.server_connection import HERE, PATIENT_S, PROGRESS_AFTER_S, QUICK_S, Server, connected, wait_for
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
    """List topics by name.

    Parameters
    ----------
    prefix
        List only topics with this prefix.
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


def show(topic: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show the state and the config of a topic.

    Parameters
    ----------
    topic
        The name of the topic.
    """
    with connected(server) as client:
        # `touch=False`: this does not count as use of the topic.
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
        # Redundant to `durability`.
        if name not in ("type", "durable"):
            shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
            pairs.append((f"--{name.replace('_', '-')}", shown))
    fields(pairs)
    return 0


def create(topic: str, /, *, output: Output = "table", server: Server = HERE, **flags: Any) -> int:
    """Create a topic.

    Parameters
    ----------
    topic
        The name of the topic.
    """
    config = given_config(flags)
    with connected(server) as client:
        try:
            client.get_topic(topic, touch=False)
        except TopicNotFound:
            answer = client.put_topic(topic, config)
        else:
            # A put would reset every field that is not given.
            raise CommandError(f"there is a topic {topic} already: `topics set` changes its config")
    print_result(answer, output, f"created {answer.topic}", answer.topic)
    return 0


with_config(create, defaults=True)


def set_(topic: str, /, *, output: Output = "table", server: Server = HERE, **flags: Any) -> int:
    """Change the config of a topic. Other fields do not change.

    Parameters
    ----------
    topic
        The name of the topic.
    """
    changes = given_config(flags)
    if not changes:
        raise UsageError("no change given. Give a field, such as --cap-records 1000")
    with connected(server) as client:
        # The server replaces the whole config, so unchanged fields are sent as well.
        kept = msgspec.to_builtins(client.get_topic(topic, touch=False).config)
        kept.pop("durable")
        answer = client.put_topic(topic, {**kept, **changes})
    print_result(answer, output, f"changed {answer.topic}: {', '.join(sorted(changes))}", answer.topic)
    return 0


with_config(set_, defaults=False)


def rm(
    *topics: Annotated[str, Parameter(required=True)],
    if_empty: Annotated[bool, Parameter(negative="", show_default=False, help="Delete only empty topics.")] = False,
    yes: Yes = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete topics and their records. Asks for confirmation on a terminal.

    Parameters
    ----------
    topics
        The names of the topics.
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
        raise CommandError(f"topic {', '.join(missing)} does not exist. List topics with `topics ls`")
    return 0


def append(
    topic: str,
    /,
    *values: Annotated[str, Parameter(required=True, allow_leading_hyphen=True)],
    tag: Annotated[str | None, Parameter(help="The tag, which deletes and filters can match.")] = None,
    node: Annotated[
        str | None, Parameter(help="The name of the writer; readers with the same name do not get the record.")
    ] = None,
    delay: Annotated[
        str | None, Parameter(help="Queues: the delay before the jobs can be claimed, such as 5m.")
    ] = None,
    run_at: Annotated[
        str | None, Parameter(help="Queues: the date from which the jobs can be claimed, such as 2026-02-24T12:00:00Z.")
    ] = None,
    priority: Annotated[int, Parameter(help="Queues: -1000 to 1000; jobs of a higher priority are claimed first.")] = 0,
    unique_key: Annotated[
        str | None, Parameter(help="Queues: append nothing while a job with this key is in the queue.")
    ] = None,
    key: Annotated[str | None, Parameter(help="The idempotency key: a repeated key appends nothing.")] = None,
    expected_head_seq: Annotated[
        int | None, Parameter(help="Append only if the topic has this head; 0 is that of a missing topic.")
    ] = None,
    fence: Annotated[str | None, Parameter(help="Append only if the topic has this fence token.")] = None,
    new_fence: Annotated[str | None, Parameter(help="Set the fence token of the topic with these records.")] = None,
    text: Annotated[bool, Switch, Parameter(help="Treat each value or line as text instead of JSON.")] = False,
    create: Annotated[bool, Parameter(help="Create a missing topic.")] = True,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Append records to a topic, all values in one batch.

    Parameters
    ----------
    topic
        The name of the topic.
    values
        The payloads as JSON; - reads one value a line from standard input, and appends them as they arrive.
    """
    delay_ms = 0 if delay is None else duration_ms(delay, "--delay")
    run_at_ms = None if run_at is None else date_ms(run_at, "--run-at")
    stream = list(values) == ["-"]
    if "-" in values and not stream:
        raise UsageError("- reads all values from standard input: give it alone")
    if stream and key is not None:
        raise UsageError("--key needs a single batch, and standard input may have many")
    if stream and expected_head_seq is not None:
        raise UsageError("--expected-head-seq needs a single batch, and standard input may have many")
    if stream and new_fence is not None:
        raise UsageError("--new-fence needs a single batch, and standard input may have many")

    def send(client: Client, batch: list[msgspec.Raw]) -> Appended:
        records = [NewRecord(value, tag) for value in batch]
        return client.append_many(
            topic, records, node=node, idempotency_key=key, create=create, delay_ms=delay_ms, run_at=run_at_ms,
            priority=priority, unique_key=unique_key, return_seqs=False, expected_head_seq=expected_head_seq,
            fence=fence, new_fence=new_fence,
        )  # fmt: skip

    # A pipe should survive a restart of the server.
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


def fence(
    topic: str,
    /,
    *,
    new: Annotated[str | None, Parameter(help="Set this token; an empty one removes the fence.")] = None,
    held: Annotated[str | None, Parameter(help="Set it only if the topic has this token.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Show the fence token of a topic, or set it: appends that name another token are refused.

    Parameters
    ----------
    topic
        The name of the topic.
    """
    if new is None and held is not None:
        raise UsageError("--held is a condition of --new")
    with connected(server) as client:
        answer = client.get_fence(topic) if new is None else client.put_fence(topic, new, fence=held)
    print_result(answer, output, f"the fence of {topic} is {answer.fence or 'not set'}", answer.fence)
    return 0


def _input(is_text: bool) -> Iterator[list[msgspec.Raw]]:
    for numbered in read_lines(sys.stdin.fileno()):
        ready: list[msgspec.Raw] = []
        try:
            for number, content in numbered:
                ready.append(json_text(content, f"line {number}", is_text=is_text))
        finally:
            # The valid lines before an invalid one are appended.
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


def read(
    topic: str,
    /,
    *,
    from_: From = None,
    since: Since = None,
    last: Last = None,
    tag: Tag = None,
    filter: Filter = None,
    limit: Annotated[int | None, Parameter(help="The maximum number of records to print.")] = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Print the records of a topic up to its end.

    Parameters
    ----------
    topic
        The name of the topic.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}; accepted is a whole number of at least 1")
    requested = meant(tag, filter)
    printer = Printer(topic, output, requested.matches)
    with connected(server) as client:
        cursor = cursor_of(client, topic, from_, since, last, SystemClock().now_ms(), requested)
        # No page larger than the number of printed records.
        page = limit if limit is not None and requested.matches is None and limit < 1000 else 1000
        for item in client.follow(
            topic, cursor, wait_ms=0, include_tags=True, limit=page, deadline_s=QUICK_S, filter=requested.query
        ):
            printer.take(item)
            if printer.count == limit:
                break
    return 0


_LAST = 10


def tail(
    topic: str,
    /,
    *,
    follow: Annotated[
        bool,
        Parameter(
            name=["--follow", "-f"], negative="", show_default=False, help="Wait for new records until interrupted."
        ),
    ] = False,
    from_: From = None,
    since: Since = None,
    last: Last = None,
    tag: Tag = None,
    filter: Filter = None,
    output: RecordForm = None,
    server: Server = HERE,
) -> int:
    """Print the last 10 records of a topic, and follow it with -f.

    Reconnects to a restarted server, and reports lost records.

    Parameters
    ----------
    topic
        The name of the topic.
    """
    if from_ is None and since is None and last is None:
        last = _LAST
    requested = meant(tag, filter)
    printer = Printer(topic, output, requested.matches)
    with connected(server) as client:
        cursor = cursor_of(client, topic, from_, since, last, SystemClock().now_ms(), requested)
        if follow:
            _follow(client, topic, cursor, printer, requested.query)
        else:
            for item in client.follow(
                topic, cursor, wait_ms=0, include_tags=True, deadline_s=QUICK_S, filter=requested.query
            ):
                printer.take(item)
    return 0


def _follow(client: Client, topic: str, cursor: int, printer: Printer, query: str | None) -> None:
    epoch: int | None = None
    while True:
        follower = client.follow(
            topic, cursor, epoch=epoch, include_tags=True, deadline_s=PROGRESS_AFTER_S, filter=query
        )
        try:
            for item in follower:
                printer.take(item)
                flush()
        except (ConnectionFailed, RetryLater) as error:
            wait_for(client, error)
        # With the epoch, because the cursor is meaningless in a recreated topic.
        cursor, epoch = follower.cursor, follower.epoch


def delete(
    topic: str,
    /,
    *,
    before: Annotated[int | None, Parameter(help="Delete records with a lower seq.")] = None,
    tag: Annotated[
        str | None, Parameter(help="Delete records with this tag; a * at the end matches any suffix.")
    ] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete records permanently, by seq, by tag, or by both.

    Parameters
    ----------
    topic
        The name of the topic.
    """
    if before is None and tag is None:
        raise UsageError(
            f"no records selected: give --before SEQ, --tag TAG or both; `topics rm {topic}` deletes the whole topic"
        )
    with connected(server) as client:
        answer = client.delete(topic, before_seq=before, match=None if tag is None else tag_match(tag))
    print_result(
        answer, output, f"deleted {counted(answer.deleted, 'record')}; {answer.count} left", str(answer.deleted)
    )
    return 0
