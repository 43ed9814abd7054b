"""`topics verify`: looks for damage, changes nothing."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.folder.report import as_json, findings_table, summary
from topics.cli.shared.screen import console, progress
from topics.engine.repair.folder import hold_folder
from topics.engine.repair.repair import verify as look
from topics.storage.layout import Layout
from topics.storage.objects.tiers import guest_files
from topics.storage.places import check_cold
from topics.system.machine import boot_id

ColdDir = Annotated[
    str | None, Parameter(env_var="TOPICS_COLD_DIR", help="Folder, or URL of an object store, with old segments.")
]
Json = Annotated[bool, Parameter(negative="", show_default=False, help="Print the report as JSON.")]


def verify(folder: str, /, *, cold_dir: ColdDir = None, json: Json = False) -> int:
    """Look for damage in a data folder, changing nothing.

    Exits with 0 when the folder is sound, with 1 when it is damaged, with 2 when it is no data folder and with 3 when
    a server is using it.

    Parameters
    ----------
    folder
        The data folder.
    """
    fs, layout = guest_files(cold_dir), Layout(folder.rstrip("/") or "/", check_cold(cold_dir, folder))
    with hold_folder(fs, layout, "topics verify", read_only=True), progress("verifying") as (on_total, on_bytes):
        report = look(fs, layout, boot_id(), on_total, on_bytes)
        if fs.exists(layout.families):
            # It imports numpy, which whoever has no companions need not have.
            from topics.storage.damage.companions import check_companions  # noqa: PLC0415

            report.notes += check_companions(fs, layout)
    if json:
        print(as_json(report))
        return 0 if report.sound else 1
    screen = console()
    if report.notes:
        screen.print(findings_table("no damage, but worth knowing", report.notes))
    if report.findings:
        screen.print(findings_table("damage", report.findings))
    screen.print(summary(report))
    if not report.sound:
        screen.print("`topics repair` mends what can be mended and says what is lost; --dry-run only says it.")
    return 0 if report.sound else 1
