"""What commands print: tables for people, one JSON object a line for programs, or the bare values.

Standard output is data; whatever else there is to say goes to standard error. Colours are for terminals only.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TextIO

import msgspec
from cyclopts import Parameter

Form = Literal["table", "json", "raw"]
Output = Annotated[
    Form,
    Parameter(name=["--output", "-o"], help="A table, one JSON object a line, or the bare values."),
]

_GAP = "  "
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"

encode = msgspec.json.Encoder().encode


def is_colourful(stream: TextIO) -> bool:
    """Whether colours are welcome there."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """A word to the person, beside the data."""
    colour, reset = (_DIM, _RESET) if is_colourful(sys.stderr) else ("", "")
    print(f"{colour}topics: {printable(text)}{reset}", file=sys.stderr, flush=True)


def line(text: str) -> None:
    raw_line(text.encode("utf-8", "surrogateescape"))


def json_line(value: object) -> None:
    raw_line(encode(value))


def raw_line(data: bytes) -> None:
    """Everything is written as bytes: what a record holds is printed as it was written, whatever the locale."""
    sys.stdout.buffer.write(data + b"\n")


def flush() -> None:
    """Lets whoever reads at the other end see it now."""
    sys.stdout.buffer.flush()


def show(value: msgspec.Struct, form: Form, sentence: str, raw: str = "") -> None:
    """What one call did: as a sentence, as the server's answer, or as the one value in it that matters."""
    if form == "json":
        json_line(value)
    else:
        line(sentence if form == "table" else raw)


def listing(form: Form, head: Sequence[str], items: Iterable[tuple[Sequence[object], object]], name: int = 0) -> None:
    """Rows and the values they stand for. The bare values are those of the column `name`."""
    if form == "table":
        table(head, [row for row, _ in items])
        return
    for row, value in items:
        if form == "json":
            json_line(value)
        else:
            line(str(row[name]))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns under a head, numbers to the right. On a terminal it is cut to its width."""
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
    """Names and values, one a line."""
    given = [(name, printable(str(value))) for name, value in pairs]
    width = max(len(name) for name, _ in given)
    colourful = is_colourful(sys.stdout)
    for name, value in given:
        label = name.ljust(width)
        line(f"{_BOLD}{label}{_RESET}  {value}" if colourful else f"{label}  {value}")


def width() -> int:
    """Columns of the terminal."""
    import shutil  # noqa: PLC0415 - it brings every compression along, and a pipe has no width

    return shutil.get_terminal_size().columns


def cut(text: str, limit: int | None) -> str:
    return text if limit is None or len(text) <= limit else text[: max(limit - 1, 0)] + "…"


def printable(text: str) -> str:
    """Text that cannot steer a terminal: names and payloads are somebody else's."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)
