"""Printing records as they are read: for people, for programs, or the payloads alone."""

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.shared.amounts import shown_time
from topics.cli.shared.lines import Line, LostLine, told
from topics.cli.shared.output import Form, cut, is_colourful, json_line, line, note, printable, raw_line, width
from topics.cli.topic.filters import Matches
from topics.client import Gap, Record

RecordForm = Annotated[
    Form | None,
    Parameter(
        name=["--output", "-o"],
        help="A table, one JSON object a line, or the payloads alone.",
        show_default=lambda _: "table on a terminal, raw in a pipe",
    ),
]

_DIM, _CYAN, _RESET = "\x1b[2m", "\x1b[36m", "\x1b[0m"


class Printer:
    """Prints what a reader meets, and says beside it what was lost."""

    def __init__(self, topic: str, form: Form | None, matches: Matches | None) -> None:
        self._topic = topic
        self._matches = matches
        self._form = form or ("table" if sys.stdout.isatty() else "raw")
        self._colourful = is_colourful(sys.stdout)
        self.count = 0

    def take(self, item: Record | Gap) -> None:
        if isinstance(item, Gap):
            self.gap(item)
        elif self._matches is None or self._matches(item):
            self.count += 1
            self.record(item)

    def record(self, record: Record) -> None:
        if self._form == "raw":
            raw_line(record.raw)
        elif self._form == "json":
            json_line(Line.of(record))
        else:
            self._row(record)

    def gap(self, gap: Gap) -> None:
        if self._form == "json":
            json_line(LostLine.of(gap))
        note(told(self._topic, gap))

    def _row(self, record: Record) -> None:
        seq, moment = f"{record.seq:>6}", shown_time(record.ts)
        tag = printable(record.tag or "")
        payload = printable(record.raw.decode("utf-8", "replace"))
        if record.meta:
            payload += "  " + printable(msgspec.json.encode(record.meta).decode())
        front = f"{seq}  {moment}  " + (f"{tag}  " if tag else "")
        if sys.stdout.isatty():
            payload = cut(payload, max(width() - len(front), 8))
        if self._colourful:
            front = f"{seq}  {_DIM}{moment}{_RESET}  " + (f"{_CYAN}{tag}{_RESET}  " if tag else "")
        line(front + payload)
