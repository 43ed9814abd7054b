"""How the tools that look at a data folder show what they found: tables for people, JSON for programs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from topics.core.errors import Finding
from topics.engine.report import Loss, Report

_WIDTH = 160
"""Of a table that does not go to a terminal."""


def console(*, stderr: bool = False) -> Console:
    """Shows text as it is: names and paths come from files, and must not be taken for markup or emoji."""
    plain = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not plain.is_terminal:
        plain.width = _WIDTH
    return plain


@contextmanager
def progress(what: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar of bytes on standard error, on a terminal only: what to call with the total, and with each step."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def on_total(total: int) -> None:
            bar.update(task, total=total)

        def on_bytes(count: int) -> None:
            bar.update(task, advance=count)

        yield on_total, on_bytes


def as_json(report: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def findings_table(title: str, findings: Sequence[Finding]) -> Table:
    table = Table("where", "what", "topic", "records", "bytes", title=title, title_justify="left")
    for finding in findings:
        table.add_row(
            finding.where, finding.what, finding.topic or "", _range(finding.seq_range), _range(finding.byte_range)
        )
    return table


def losses_table(losses: Sequence[Loss]) -> Table:
    table = Table("topic", "from seq", "to seq", "", title="lost records", title_justify="left")
    for loss in losses:
        sure = "" if loss.sure else "at most: nobody can tell whether there were any"
        table.add_row(loss.topic, str(loss.from_seq), str(loss.to_seq), sure)
    return table


def summary(report: Report) -> str:
    problems = f"{_count(len(report.findings), 'problem')}" if report.findings else "sound"
    return (
        f"{_count(report.topics, 'topic')}, {_count(report.segments, 'segment')}, {_count(report.records, 'record')}, "
        f"{_count(report.frames, 'frame')}, {report.bytes_checked} bytes checked: {problems}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _range(ends: tuple[int, int] | None) -> str:
    return f"{ends[0]}–{ends[1]}" if ends is not None else ""
