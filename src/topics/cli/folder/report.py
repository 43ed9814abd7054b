"""How the tools that look at a data folder show what they found: tables for people, JSON for programs."""

from collections.abc import Sequence

import msgspec
from rich.table import Table

from topics.core.findings import Finding
from topics.engine.repair.report import Loss, Report


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
