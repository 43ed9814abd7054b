"""`topics pipeline run`."""

import os
import threading
from typing import Annotated

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from topics.cli.pipeline.showing import DataDir, show
from topics.cli.shared.needs import need_spark
from topics.cli.shared.screen import console
from topics.config.settings import Settings
from topics.core.errors import FolderBusyError
from topics.system.clock import SystemClock

ColdDir = Annotated[str | None, Parameter(name="--cold-dir", help="The cold folder or object store (TOPICS_COLD_DIR).")]
ArchiveDir = Annotated[str | None, Parameter(name="--archive-dir", help="The archive (TOPICS_ARCHIVE_DIR).")]
Master = Annotated[str | None, Parameter(name="--spark-master", help="Where Spark runs (TOPICS_SPARK_MASTER).")]
Remote = Annotated[
    str | None, Parameter(name="--spark-remote", help="A server of Spark Connect (TOPICS_SPARK_REMOTE).")
]
Compact = Annotated[
    bool, Parameter(negative="", show_default=False, help="Write every file again that holds anything deleted.")
]


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
    need_spark("the pipeline")
    # These import numpy and Arrow, which the other commands must not need.
    from topics.spark.pipeline.worker import (  # noqa: PLC0415
        LateSpark,
        PipelineBusyError,
        check_tracked,
        files_of,
        hold_pipeline,
        layout_of,
        make_pipeline,
        run_until_idle,
    )

    given = {"data_dir": data_dir, "cold_dir": cold_dir, "archive_dir": archive_dir}
    where = {"spark_master": spark_master, "spark_remote": spark_remote}
    settings = Settings.from_env(os.environ, {**given, **where, "archive": "1"})
    fs, clock = files_of(settings), SystemClock()
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
    show(pipeline.status, pipeline.status.records - before)
    return 1 if pipeline.status.quarantined else 0
