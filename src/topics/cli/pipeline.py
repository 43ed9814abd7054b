"""`topics pipeline`: the pipeline by hand."""

import os
import threading
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from topics.cli.report import console
from topics.config.settings import Settings
from topics.core.errors import FolderBusyError
from topics.spark.pipeline.status import PipelineStatus, load_status
from topics.spark.shipping import package_zip
from topics.storage.layout import Layout
from topics.storage.objects.tiers import guest_files
from topics.storage.posix import PosixFileSystem
from topics.system.clock import SystemClock

DataDir = Annotated[str | None, Parameter(name="--data-dir", help="The data folder (TOPICS_DATA_DIR).")]
ColdDir = Annotated[str | None, Parameter(name="--cold-dir", help="The cold folder or object store (TOPICS_COLD_DIR).")]
ArchiveDir = Annotated[str | None, Parameter(name="--archive-dir", help="The archive (TOPICS_ARCHIVE_DIR).")]
Master = Annotated[str | None, Parameter(name="--spark-master", help="Where Spark runs (TOPICS_SPARK_MASTER).")]
Remote = Annotated[
    str | None, Parameter(name="--spark-remote", help="A server of Spark Connect (TOPICS_SPARK_REMOTE).")
]
Compact = Annotated[bool, Parameter(negative="", help="Write every file again that holds anything deleted.")]
Json = Annotated[bool, Parameter(negative="", help="Print the status as JSON.")]


def run(
    *,
    data_dir: DataDir = None,
    cold_dir: ColdDir = None,
    archive_dir: ArchiveDir = None,
    spark_master: Master = None,
    spark_remote: Remote = None,
    compact: Compact = False,
) -> int:
    """Archive everything that is sealed, then end. A server may run on the folder meanwhile."""
    # These import numpy and Arrow, which the other commands must not need.
    from topics.spark.pipeline.worker import (  # noqa: PLC0415
        LateSpark,
        PipelineBusyError,
        check_tracked,
        hold_pipeline,
        layout_of,
        make_pipeline,
        run_until_idle,
    )

    given = {"data_dir": data_dir, "cold_dir": cold_dir, "archive_dir": archive_dir}
    where = {"spark_master": spark_master, "spark_remote": spark_remote}
    settings = Settings.from_env(os.environ, {**given, **where, "archive": "1"})
    fs, clock = guest_files(settings.cold_dir), SystemClock()
    layout = layout_of(settings)
    if not fs.exists(layout.meta):
        raise FileNotFoundError(f"{layout.root} is no data folder")
    try:
        lock = hold_pipeline(fs, layout, f"topics pipeline run, process {os.getpid()}")
    except PipelineBusyError as error:
        raise FolderBusyError(layout.pipeline, str(error)) from error
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    spark = LateSpark(settings)
    try:
        check_tracked(fs, layout)
        pipeline = make_pipeline(settings, fs, spark, clock, compact)
        before = pipeline.status.records
        with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
            task = bar.add_task("archiving", total=None)
            pipeline.on_progress = lambda done, total: bar.update(task, completed=done, total=total)
            run_until_idle(pipeline, settings, clock, threading.Event().wait, once=True)
    finally:
        spark.close()
        lock.release()
    _show(pipeline.status, pipeline.status.records - before)
    return 1 if pipeline.status.quarantined else 0


def status(*, data_dir: DataDir = None, json: Json = False) -> int:
    """Print where the pipeline of a data folder stands."""
    settings = Settings.from_env(os.environ, {"data_dir": data_dir})
    found = load_status(PosixFileSystem(), Layout(settings.data_dir))
    if json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show(found, None)
    return 0


def zip_(folder: str = ".", /) -> int:
    """Write the package to a file for spark-submit.

    Parameters
    ----------
    folder
        Where the file goes.
    """
    print(package_zip(Path(folder)))
    return 0


def _show(found: PipelineStatus, fresh: int | None) -> None:
    screen = console()
    if fresh is not None:
        screen.print(f"{fresh} records archived")
    screen.print(f"{found.lag_segments} segments behind, {found.records} records archived in all")
    if found.error is not None:
        screen.print(f"the last round failed: {found.error}")
    for one in found.quarantined:
        screen.print(f"left out for now: {one.topic} ({one.product}, {one.attempts} attempts): {one.reason}")
