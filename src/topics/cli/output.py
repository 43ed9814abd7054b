"""Output of commands: tables, one JSON object a line, or raw values; reading of input lines; confirmation prompts.

Standard output has data only; messages go to standard error. Colours are used on terminals only.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TextIO

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from topics.cli.failures import CommandError, UsageError
from topics.model.records import in_one_line
from topics_client import Gap, Record

Form = Literal["table", "json", "raw"]
Output = Annotated[
    Form,
    Parameter(name=["--output", "-o"], help="A table, one JSON object a line, or raw values."),
]

_GAP = "  "
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"

encode = msgspec.json.Encoder().encode


def is_colourful(stream: TextIO) -> bool:
    """Whether to use colours on a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """Prints a message to standard error."""
    colour, reset = (_DIM, _RESET) if is_colourful(sys.stderr) else ("", "")
    print(f"{colour}topics: {printable(text)}{reset}", file=sys.stderr, flush=True)


def line(text: str) -> None:
    raw_line(text.encode("utf-8", "surrogateescape"))


def json_line(value: object) -> None:
    raw_line(encode(value))


def raw_line(data: bytes) -> None:
    """Writes a line as bytes: payloads are printed as they were written, whatever the locale."""
    sys.stdout.buffer.write(data + b"\n")


def flush() -> None:
    """Flushes standard output."""
    sys.stdout.buffer.flush()


def print_result(value: msgspec.Struct, form: Form, sentence: str, raw: str = "") -> None:
    """Prints the result of a call: a sentence, the response as JSON, or its main value."""
    if form == "json":
        json_line(value)
    else:
        line(sentence if form == "table" else raw)


def print_table(
    form: Form, head: Sequence[str], items: Iterable[tuple[Sequence[object], object]], name: int = 0
) -> None:
    """Prints rows or their JSON values. Raw output prints the column `name`."""
    if form == "table":
        table(head, [row for row, _ in items])
        return
    for row, value in items:
        if form == "json":
            json_line(value)
        else:
            line(str(row[name]))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints columns under a head, numbers right-aligned. On a terminal lines are cut to its width."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[at], int | float) for row in rows) for at in range(len(head))]
    widths = [max(len(row[at]) for row in [list(head), *cells]) for at in range(len(head))]
    colourful = is_colourful(sys.stdout)
    limit = width() if sys.stdout.isatty() else None
    for number, row in enumerate([list(head), *cells]):
        text = _GAP.join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        text = cut(text, limit)
        line(f"{_BOLD}{text}{_RESET}" if colourful and number == 0 else text)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line."""
    given = [(name, printable(str(value))) for name, value in pairs]
    width = max(len(name) for name, _ in given)
    colourful = is_colourful(sys.stdout)
    for name, value in given:
        label = name.ljust(width)
        line(f"{_BOLD}{label}{_RESET}  {value}" if colourful else f"{label}  {value}")


def width() -> int:
    """The number of columns of the terminal."""
    import shutil  # noqa: PLC0415 - it brings every compression along, and a pipe has no width

    return shutil.get_terminal_size().columns


def cut(text: str, limit: int | None) -> str:
    return text if limit is None or len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def printable(text: str) -> str:
    """Text without control characters: names and payloads are untrusted."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


# Consoles and progress bars of rich.

_WIDTH = 160
"""The width of a table that is not printed to a terminal."""


def console(*, stderr: bool = False) -> Console:
    """A console that prints names and paths literally, without markup or emoji."""
    plain = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not plain.is_terminal:
        plain.width = _WIDTH
    return plain


@contextmanager
def progress(what: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A progress bar of bytes on standard error, on terminals only; yields the setters of total and step."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def on_total(total: int) -> None:
            bar.update(task, total=total)

        def on_bytes(count: int) -> None:
            bar.update(task, advance=count)

        yield on_total, on_bytes


# Lines of standard input, and records as one line of JSON:
#
# {"seq":7,"ts":1748470000123,"node":"a","tag":"t","meta":{"k":1},"data":{"order":7}}

BATCH_RECORDS = 1000
BATCH_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_LINE_BYTES_MAX = 256 * 1024 * 1024

_check = msgspec.json.Decoder(msgspec.Raw).decode


class Line(msgspec.Struct, omit_defaults=True):
    """A record as printed and exported; the payload is as written, without line breaks."""

    seq: int
    ts: int
    node: str | None = None
    tag: str | None = None
    meta: dict[str, Any] | None = None
    data: msgspec.Raw = msgspec.Raw(b"")

    @classmethod
    def of(cls, record: Record) -> "Line":
        return cls(record.seq, record.ts, record.node, record.tag, record.meta, msgspec.Raw(in_one_line(record.raw)))


class LostLine(msgspec.Struct, tag="lost", tag_field="type"):
    """A range of lost records, at the position of the first of them."""

    gap_from: int
    gap_to: int
    reason: str

    @classmethod
    def of(cls, gap: Gap) -> "LostLine":
        return cls(gap.gap_from, gap.gap_to, gap.reason)


def describe_gap(topic: str, gap: Gap) -> str:
    """The message for a gap."""
    if gap.reason == "recreated":
        return f"{topic} was deleted and created again: reading continues at its beginning"
    return f"{topic}: the records {gap.gap_from} to {gap.gap_to} are lost ({gap.reason})"


def json_text(text: bytes, where: str, *, is_text: bool) -> msgspec.Raw:
    """One value checked to be JSON; with `is_text`, the text as a JSON string."""
    try:
        decoded = text.decode("utf-8")
        if is_text:
            return msgspec.Raw(msgspec.json.encode(decoded))
        return _check(decoded.strip())
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        shown = text[:80].decode("utf-8", "replace")
        raise CommandError(
            f"{where} is not valid JSON ({error}): {shown!r}; quote a text as JSON, or use --text"
        ) from error


@contextmanager
def interruptible_reads() -> Iterator[Callable[[int], bytes]]:
    """A blocking read that a signal interrupts: a Ctrl-C between the interpreter's last check for signals and the read
    would otherwise be noticed only when input arrives.
    """
    heard, reported = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def read(descriptor: int) -> bytes:
        ready: list[int] = []
        while descriptor not in ready:
            ready, _, _ = select.select([descriptor, heard], [], [])
            if heard in ready:
                os.read(heard, 64)
        return os.read(descriptor, _CHUNK_BYTES)

    try:
        before = signal.set_wakeup_fd(reported, warn_on_full_buffer=False)
    except ValueError:  # Only the main thread receives signals.
        before = None
    try:
        yield read
    finally:
        if before is not None:
            signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(reported)


def read_lines(descriptor: int) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of a file with their numbers, in batches as they arrive.

    A slow pipe gives single lines and a fast one many at once, so that neither has to wait.
    """
    # Chunks of an incomplete line, joined only when it ends, so that a long line is not copied with every chunk.
    parts: list[bytes] = []
    size = number = 0
    with interruptible_reads() as read:
        while chunk := read(descriptor):
            parts.append(chunk)
            size += len(chunk)
            if b"\n" not in chunk:
                if size > _LINE_BYTES_MAX:
                    raise CommandError(f"line {number + 1} is longer than {_LINE_BYTES_MAX} bytes, the maximum")
                continue
            *whole, rest = b"".join(parts).split(b"\n")
            parts, size = [rest], len(rest)
            numbered = [(number + place, text) for place, text in enumerate(whole, 1)]
            number += len(whole)
            yield [(place, text) for place, text in numbered if text.strip()]
    rest = b"".join(parts)
    if rest.strip():
        yield [(number + 1, rest)]


def batches(values: list[msgspec.Raw]) -> Iterator[list[msgspec.Raw]]:
    """Splits values into batches of one request each."""
    batch: list[msgspec.Raw] = []
    size = 0
    for value in values:
        if batch and (len(batch) >= BATCH_RECORDS or size + len(bytes(value)) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(bytes(value))
    if batch:
        yield batch


# Confirmation prompts.

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", show_default=False, help="Skip the confirmation.")]


def confirm(question: str, sure: bool) -> None:
    """Asks for confirmation; raises without a yes, and without a terminal where `--yes` is missing."""
    if sure:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Standard input is not a terminal: confirm with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was deleted")
