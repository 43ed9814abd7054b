"""`topics repair`: mends a damaged data folder and says what is lost."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.folder.report import as_json, findings_table, losses_table, summary
from topics.cli.folder.verify import ColdDir, Json
from topics.cli.shared.screen import console, progress
from topics.engine.repair.folder import hold_folder
from topics.engine.repair.repair import Repair
from topics.engine.repair.report import RepairReport
from topics.storage.layout import Layout
from topics.storage.objects.tiers import guest_files
from topics.storage.places import check_cold
from topics.system.clock import SystemClock
from topics.system.dice import SystemDice
from topics.system.machine import boot_id

DryRun = Annotated[bool, Parameter(negative="", show_default=False, help="Say what would be done and change nothing.")]


def repair(folder: str, /, *, cold_dir: ColdDir = None, dry_run: DryRun = False, json: Json = False) -> int:
    """Mend a damaged data folder.

    What cannot be mended is given up and told to readers as lost; the damaged files are kept in a folder of their own.
    Exits with 0 when the folder is sound, or is now; with 1 when it is still damaged; with 2 when it is no data folder
    and with 3 when a server is using it.

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
        report = Repair(fs, layout, SystemClock(), SystemDice(), boot_id()).run(dry_run, on_total, on_bytes)
    if json:
        print(as_json(report))
    else:
        _show(report)
    return 0 if report.sound else 1


def _show(report: RepairReport) -> None:
    screen = console()
    if report.found.sound:
        screen.print(summary(report.found))
        screen.print("There is nothing to repair; nothing was changed.")
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
