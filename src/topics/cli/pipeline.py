"""`topics pipeline run`."""

import os
import threading
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from topics.cli.arguments import need_spark
from topics.cli.failures import CommandError
from topics.cli.output import console
from topics.log.catalog import read_catalog
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.errors import FolderBusyError
from topics.model.settings import Settings
from topics.spark.package_zip import package_zip
from topics.spark.pipeline.status import PipelineStatus, load_status
from topics.system.clock import SystemClock

# `topics pipeline zip`.


def zip_(folder: str = ".", /) -> int:
    """Write the package to a file for spark-submit.

    Parameters
    ----------
    folder
        Where the file goes.
    """
    print(package_zip(Path(folder)))
    return 0


# Showing where the pipeline stands.

DataDir = Annotated[
    str | None,
    Parameter(name="--data-dir", help="The data folder (TOPICS_DATA_DIR).", show_default=lambda _: "./topics-data"),
]


def show(found: PipelineStatus, fresh: int | None) -> None:
    screen = console()
    if fresh is not None:
        screen.print(f"{fresh} records archived")
    screen.print(f"{found.lag_segments} segments behind, {found.records} records archived in all")
    if found.error is not None:
        screen.print(f"the last round failed: {found.error}")
    for one in found.quarantined:
        screen.print(f"left out for now: {one.topic} ({one.product}, {one.attempts} attempts): {one.reason}")


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
    from topics.spark.pipeline.pipeline_worker import (  # noqa: PLC0415
        LazySpark,
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
    spark = LazySpark(settings)
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


# `topics pipeline rebuild`.


def rebuild(stream: str, /, *, data_dir: DataDir = None) -> int:
    """Have the indexes of a stream made again by the next run. Those that are there answer until then.

    Parameters
    ----------
    stream
        The stream's name.
    """
    need_spark("the pipeline")
    # These import numpy and Arrow, which the other commands must not need.
    from topics.search.file_index.manifest import IndexStore  # noqa: PLC0415
    from topics.spark.index_builds.index_plan import outdated  # noqa: PLC0415
    from topics.spark.pipeline.pipeline_worker import PipelineBusyError, hold_pipeline  # noqa: PLC0415
    from topics.spark.pipeline.status import load_status, save_status  # noqa: PLC0415

    settings = Settings.from_env(os.environ, {"data_dir": data_dir})
    fs, layout, clock = PosixFileSystem(), Layout(settings.data_dir), SystemClock()
    catalog = read_catalog(fs, layout)
    topic = None if catalog is None else catalog.by_name().get(stream)
    if topic is None:
        raise CommandError(f"{layout.root} has no stream {stream} of which anything is sealed")
    try:
        lock = hold_pipeline(fs, layout, f"topics pipeline rebuild, process {os.getpid()}")
    except PipelineBusyError as error:
        raise FolderBusyError(layout.pipeline, str(error)) from error
    try:
        store = IndexStore(fs, layout)
        manifest = store.load(topic.topic_id)
        if manifest is None or not manifest.files:
            raise CommandError(f"{stream} has no indexes; `topics pipeline run` makes them")
        store.save(outdated(manifest, clock.now_ms()))
        # A server that keeps the pipeline sees that there is something to do.
        save_status(fs, layout, msgspec.structs.replace(load_status(fs, layout), catalog=0))
    finally:
        lock.release()
    print(f"{len(manifest.files)} companions of {stream} are made again by the next run of the pipeline")
    return 0


# `topics pipeline status`.

Json = Annotated[bool, Parameter(negative="", show_default=False, help="Print the status as JSON.")]


def status(*, data_dir: DataDir = None, json: Json = False) -> int:
    """Print where the pipeline of a data folder stands."""
    settings = Settings.from_env(os.environ, {"data_dir": data_dir})
    fs, layout = PosixFileSystem(), Layout(settings.data_dir)
    if not fs.exists(layout.meta):
        raise CommandError(f"{layout.root} is no data folder: say which one with --data-dir")
    found = load_status(fs, layout)
    if json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show(found, None)
    return 0
