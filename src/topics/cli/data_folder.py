"""`topics verify` and `topics repair`: check a data folder for damage, and repair it."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.table import Table

from topics.cli.arguments import ColdDir, Json, counted
from topics.cli.output import console, progress
from topics.log.layout import Layout, check_cold
from topics.log.object_store.tiered_fs import guest_files
from topics.model.errors import Finding
from topics.ops.repair.repair import Repair
from topics.ops.repair.repair import verify as look
from topics.ops.verify.verification import Loss, RepairReport, Report, hold_folder
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import boot_id


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
        sure = "" if loss.sure else "at most: it is unknown whether these existed"
        table.add_row(loss.topic, str(loss.from_seq), str(loss.to_seq), sure)
    return table


def summary(report: Report) -> str:
    problems = f"{counted(len(report.findings), 'problem')}" if report.findings else "sound"
    counts = (
        (report.topics, "topic"),
        (report.segments, "segment"),
        (report.records, "record"),
        (report.frames, "frame"),
    )
    return f"{', '.join(counted(*one) for one in counts)}, {report.bytes_checked} bytes checked: {problems}"


def _range(ends: tuple[int, int] | None) -> str:
    return f"{ends[0]}–{ends[1]}" if ends is not None else ""


def verify(folder: str, /, *, cold_dir: ColdDir = None, json: Json = False) -> int:
    """Check a data folder for damage without changing it.

    Exits with 0 when the folder is intact, with 1 when it is damaged, with 2 when the folder is not a data folder and
    with 3 when a server is using it.

    Parameters
    ----------
    folder
        The data folder.
    """
    fs, layout = guest_files(cold_dir), Layout(folder.rstrip("/") or "/", check_cold(cold_dir, folder))
    with hold_folder(fs, layout, "topics verify", read_only=True), progress("verifying") as (on_total, on_bytes):
        report = look(fs, layout, boot_id(), on_total, on_bytes)
        if fs.exists(layout.families):
            # It imports numpy, which is only needed with index files.
            from topics.search.file_index.manifest import check_index_files  # noqa: PLC0415

            report.notes += check_index_files(fs, layout)
    if json:
        print(as_json(report))
        return 0 if report.sound else 1
    screen = console()
    if report.notes:
        screen.print(findings_table("notes (no damage)", report.notes))
    if report.findings:
        screen.print(findings_table("damage", report.findings))
    screen.print(summary(report))
    if not report.sound:
        screen.print("`topics repair` repairs the folder and reports losses; --dry-run only reports them.")
    return 0 if report.sound else 1


DryRun = Annotated[
    bool, Parameter(negative="", show_default=False, help="Report what would be done without changing anything.")
]


def repair(folder: str, /, *, cold_dir: ColdDir = None, dry_run: DryRun = False, json: Json = False) -> int:
    """Repair a damaged data folder.

    Records that cannot be recovered are reported to readers as lost; the damaged files are kept in a separate folder.
    Exits with 0 when the folder is intact or was repaired, with 1 when it is still damaged, with 2 when the folder is
    not a data folder and with 3 when a server is using it.

    Parameters
    ----------
    folder
        The data folder.
    """
    fs, layout = guest_files(cold_dir), Layout(folder.rstrip("/") or "/", check_cold(cold_dir, folder))
    with (
        hold_folder(fs, layout, "topics repair", read_only=dry_run),
        progress("looking for damage") as (on_total, on_bytes),
    ):
        report = Repair(fs, layout, SystemClock(), SystemEntropy(), boot_id()).run(dry_run, on_total, on_bytes)
    if json:
        print(as_json(report))
    else:
        _show(report)
    return 0 if report.sound else 1


def _show(report: RepairReport) -> None:
    screen = console()
    if report.found.sound:
        screen.print(summary(report.found))
        screen.print("The folder needs no repair. Nothing was changed.")
        return
    screen.print(findings_table("damage", report.found.findings))
    if report.losses:
        screen.print(losses_table(report.losses))
    for action in report.actions:
        screen.print(f"- {action}")
    if report.moved:
        keep = "would be kept" if report.dry_run else "are kept"
        screen.print(f"These files {keep} in {', '.join(report.moved_to)}:")
        for path in report.moved:
            screen.print(f"  {path}")
    if not report.losses:
        screen.print("No record is lost.")
    if report.after is None:
        screen.print("This was a dry run: nothing was changed.")
        return
    screen.print(summary(report.after))
    if not report.after.sound:
        screen.print(findings_table("what could not be repaired", report.after.findings))
