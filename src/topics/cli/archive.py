"""`topics archive`: verify and repair the archive of a data folder."""

import os

from rich.table import Table

from topics.cli.arguments import ColdDir, Json, counted, need_spark
from topics.cli.data_folder import DryRun, as_json
from topics.cli.failures import CommandError
from topics.cli.output import console, progress
from topics.cli.pipeline import ArchiveDir, DataDir, check_data_folder, lock_pipeline
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.errors import FolderBusyError
from topics.model.settings import Settings
from topics.spark.pipeline.pipeline_settings import archive_root, files_of, layout_of, resolve
from topics.system.clock import SystemClock


def verify(
    *, data_dir: DataDir = None, cold_dir: ColdDir = None, archive_dir: ArchiveDir = None, json: Json = False
) -> int:
    """Check the files and the tables of the archive against its ledger, without changing anything.

    Exits with 0 when the archive is sound and with 1 when it is not. Beside a run of the pipeline the tables are not
    compared.
    """
    return _check(data_dir, cold_dir, archive_dir, json, repair=False)


def repair(
    *,
    data_dir: DataDir = None,
    cold_dir: ColdDir = None,
    archive_dir: ArchiveDir = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Repair the archive: make its tables again, and have lost files rebuilt from the log.

    Files whose records the log no longer has leave the archive, and their records are reported as lost. Exits with 0
    when the archive is sound or was repaired, with 1 when it is not, and with 3 beside a run of the pipeline.
    """
    return _check(data_dir, cold_dir, archive_dir, json, repair=not dry_run)


def _check(data_dir: str | None, cold_dir: str | None, archive_dir: str | None, json: bool, repair: bool) -> int:
    need_spark("the archive")
    from topics.spark.pipeline.archive_check import ArchiveCheck  # noqa: PLC0415 - it takes a second

    given = {"data_dir": data_dir, "cold_dir": cold_dir, "archive_dir": archive_dir}
    chosen = Settings.from_env(os.environ, {**given, "archive": "1"})
    check_data_folder(Layout(chosen.data_dir))
    settings = resolve(chosen, Settings.given(os.environ, given))
    fs, layout, note = files_of(settings), layout_of(settings), ""
    if not fs.exists(archive_root(settings)):
        raise CommandError(f"{archive_root(settings)} is not an archive. `topics pipeline run` creates one")
    try:
        lock = lock_pipeline(PosixFileSystem(), layout, "archive")
    except FolderBusyError as error:
        if repair:
            raise
        lock, note = None, f"{error}: the tables were not compared"
    check = ArchiveCheck(settings, fs)
    try:
        with progress("checking the archive") as (on_total, on_bytes):
            if repair:
                report = check.repair(SystemClock().now_ms(), on_total, on_bytes)
            else:
                report = check.verify(lock is not None, on_total, on_bytes)
    finally:
        if lock is not None:
            lock.release()
    report.note = note
    if json:
        print(as_json(report))
        return 0 if report.sound or report.repaired else 1
    screen = console()
    if report.findings:
        table = Table(
            "where", "what", "remedy", title="repaired" if report.repaired else "damage", title_justify="left"
        )
        for one in report.findings:
            table.add_row(one.where, one.what, one.remedy)
        screen.print(table)
    for lost in report.lost:
        screen.print(
            f"{lost.topic}: up to {counted(lost.records, 'record')} from {lost.from_seq} to {lost.to_seq} lost"
        )
    counts = ((report.files, "file"), (report.records, "record"), (report.tables, "table"))
    told = counted(len(report.findings), "problem") if report.findings else "sound"
    screen.print(f"{', '.join(counted(*one) for one in counts)}: {told}")
    if note:
        screen.print(note)
    if report.findings:
        after = "Run the pipeline to copy and build what is missing." if report.repaired else (
            "`topics archive repair` repairs it."
        )  # fmt: skip
        screen.print(after)
    return 0 if report.sound or report.repaired else 1
