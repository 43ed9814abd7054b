"""`topics append`."""

import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.shared.amounts import counted, duration_ms
from topics.cli.shared.connection import HERE, PATIENT_S, QUICK_S, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.shared.lines import batches, json_text, read_lines
from topics.cli.shared.output import Output, flush, json_line, line, note
from topics.client import Appended, Client, NewRecord

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
