"""`topics pipeline`: run the Spark pipeline, ask the running one for work, pause it, show the status."""

import os
import sys
import threading
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from topics.cli.arguments import ColdDir, Json, need_spark
from topics.cli.failures import CommandError
from topics.cli.output import console
from topics.log.catalog_files import read_catalog
from topics.log.fs import FileSystem, FolderLock
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem, is_locked
from topics.model.errors import FolderBusyError
from topics.model.settings import Settings
from topics.spark.package_zip import package_zip
from topics.spark.pipeline.pipeline_requests import Kind, PipelineRequest, RequestQueue
from topics.spark.pipeline.pipeline_settings import layout_of, names_of, resolve
from topics.spark.pipeline.status import PipelineStatus, load_progress, load_status, summary
from topics.system.clock import SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.process import step_back

if TYPE_CHECKING:
    from topics.spark.pipeline.pipeline_worker import PipelineRun
    from topics.spark.pipeline.rounds import Pipeline


_PAUSE_S = 15.0
"""How long `pause` waits for the server's process to end."""
_LOOK_S = 0.1


def zip_(folder: str = ".", /) -> int:
    """Write the package to a zip file for spark-submit, and the script to submit beside it.

    Parameters
    ----------
    folder
        The target folder.
    """
    script = files("topics.spark.pipeline") / "submit.py"
    # As one file, because the installed package may be anywhere, also in an archive.
    Path(folder, "submit.py").write_bytes(script.read_bytes())
    print(package_zip(Path(folder)))
    return 0


DataDir = Annotated[
    str | None,
    Parameter(name="--data-dir", help="The data folder (TOPICS_DATA_DIR).", show_default=lambda _: "./topics-data"),
]


def show(found: PipelineStatus, fresh: int | None) -> None:
    screen = console()
    if fresh is not None:
        screen.print(f"{fresh} records archived")
    for line in summary(found):
        screen.print(line)
    if found.error is not None:
        screen.print(f"the last round failed: {found.error}")
    for one in found.quarantined:
        screen.print(f"quarantined: {one.topic} ({one.product}, {one.attempts} attempts): {one.reason}")


ArchiveDir = Annotated[str | None, Parameter(name="--archive-dir", help="The archive (TOPICS_ARCHIVE_DIR).")]
Master = Annotated[str | None, Parameter(name="--spark-master", help="The Spark master (TOPICS_SPARK_MASTER).")]
Remote = Annotated[str | None, Parameter(name="--spark-remote", help="The Spark Connect server (TOPICS_SPARK_REMOTE).")]
Compact = Annotated[bool, Parameter(negative="", show_default=False, help="Rewrite every file with deleted records.")]

Reconfigure = Annotated[
    str | None,
    Parameter(help="Recorded settings to replace by those of this run, such as archive_typed; commas between names."),
]


def run(
    *,
    data_dir: DataDir = None,
    cold_dir: ColdDir = None,
    archive_dir: ArchiveDir = None,
    spark_master: Master = None,
    spark_remote: Remote = None,
    compact: Compact = False,
    reconfigure: Reconfigure = None,
) -> int:
    """Archive all sealed records and exit. A server may use the folder meanwhile."""
    need_spark("the pipeline")
    # These import numpy and Arrow, which other commands do not need.
    from topics.spark.pipeline.pipeline_worker import (  # noqa: PLC0415
        LazySpark,
        RequestWorker,
        make_pipeline,
        run_until_idle,
    )

    given = {"data_dir": data_dir, "cold_dir": cold_dir, "archive_dir": archive_dir}
    where = {"spark_master": spark_master, "spark_remote": spark_remote}
    chosen = Settings.from_env(os.environ, {**given, **where, "archive": "1"})
    check_data_folder(Layout(chosen.data_dir))
    clock = SystemClock()
    try:
        opened = _open_run(chosen, Settings.given(os.environ, given), names_of(reconfigure))
    except FolderBusyError as error:
        if not compact or reconfigure is not None:
            raise
        resolve(chosen, Settings.given(os.environ, given))  # Its options must agree with the other run.
        return _queue("compact", None, layout_of(chosen), str(error))
    settings = opened.settings
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Before Spark is started, which inherits it: a server beside this run has priority.
    step_back(settings.pipeline_priority)
    spark = LazySpark(settings)
    problems: list[str] = []

    def note(text: str, is_problem: bool) -> None:
        print(f"topics: {text}", file=sys.stderr)
        problems.extend([text] if is_problem else ())

    try:
        with opened, Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
            task = bar.add_task("archiving", total=None)

            def make(erase: bool, keep: bool) -> "Pipeline":
                made = make_pipeline(
                    settings, opened.fs, spark, clock, compact or erase, None, note, opened.reporter, keep_replaced=keep
                )
                made.on_progress = lambda done, total: bar.update(task, completed=done, total=total)
                return made

            before = (pipeline := make(False, True)).status.records
            requests = RequestWorker(opened.fs, opened.layout, clock, make)
            pipeline = run_until_idle(pipeline, settings, clock, threading.Event().wait, once=True, requests=requests)
    finally:
        spark.close()
    show(pipeline.status, pipeline.status.records - before)
    return 1 if pipeline.status.quarantined or problems else 0


def _open_run(settings: Settings, given: Collection[str], reconfigure: Collection[str]) -> "PipelineRun":
    from topics.spark.pipeline.pipeline_worker import PipelineBusyError, open_run  # noqa: PLC0415

    try:
        return open_run(settings, given, f"topics pipeline run, process {os.getpid()}", SystemClock(), reconfigure)
    except PipelineBusyError as error:
        raise FolderBusyError(layout_of(settings).pipeline, str(error)) from error


def check_data_folder(layout: Layout) -> None:
    if not PosixFileSystem().exists(layout.meta):
        raise CommandError(f"{layout.root} is not a data folder. Name one with --data-dir or TOPICS_DATA_DIR")


def lock_pipeline(fs: FileSystem, layout: Layout, command: str) -> FolderLock:
    from topics.spark.pipeline.pipeline_worker import PipelineBusyError, hold_pipeline  # noqa: PLC0415

    try:
        return hold_pipeline(fs, layout, f"topics pipeline {command}, process {os.getpid()}")
    except PipelineBusyError as error:
        raise FolderBusyError(layout.pipeline, str(error)) from error


def rebuild(stream: str, /, *, data_dir: DataDir = None) -> int:
    """Ask the pipeline to rebuild the index files of a stream. The existing ones answer until then.

    Parameters
    ----------
    stream
        The name of the stream.
    """
    layout = _folder(data_dir)
    from topics.search.file_index.manifest import IndexStore  # noqa: PLC0415 - it takes a while

    catalog = read_catalog(PosixFileSystem(), layout)
    topic = None if catalog is None else catalog.by_name().get(stream)
    if topic is None:
        raise CommandError(f"{layout.root} has no stream {stream} with sealed entries")
    manifest = IndexStore(PosixFileSystem(), layout).load(topic.topic_id)
    if manifest is None or not manifest.files:
        raise CommandError(f"{stream} has no index files; `topics pipeline run` builds them")
    return _queue("rebuild", stream, layout)


def compact(*, data_dir: DataDir = None) -> int:
    """Ask the pipeline to rewrite every file with deleted records."""
    return _queue("compact", None, _folder(data_dir))


def erase(*, data_dir: DataDir = None) -> int:
    """Ask the pipeline to rewrite every file with deleted records, and to remove replaced files at once.

    Queries that read the archive meanwhile may fail, and snapshots without a tag cannot be read any more.
    """
    return _queue("erase", None, _folder(data_dir))


def backfill(*, data_dir: DataDir = None) -> int:
    """Ask the pipeline to look at every topic and file again, also at quarantined topics."""
    return _queue("backfill", None, _folder(data_dir))


def pause(*, data_dir: DataDir = None) -> int:
    """Stop the pipeline of the server until it is resumed. Runs by hand are not affected."""
    layout = _folder(data_dir)
    RequestQueue(PosixFileSystem(), layout).pause(_who("pause"), SystemClock().now_ms())
    lock, moments = f"{layout.pipeline}/lock", _PAUSE_S / _LOOK_S
    while is_locked(lock) and moments > 0:
        moments -= 1
        threading.Event().wait(_LOOK_S)
    if is_locked(lock):
        raise FolderBusyError(layout.pipeline, "a run that is not the server's, whose pipeline is paused")
    print("the server's pipeline is paused; `topics pipeline resume` ends the pause")
    return 0


def resume(*, data_dir: DataDir = None) -> int:
    """Resume the pipeline of the server."""
    was = RequestQueue(PosixFileSystem(), _folder(data_dir)).resume()
    print("the server's pipeline is resumed" if was else "the server's pipeline was not paused")
    return 0


def _folder(data_dir: str | None) -> Layout:
    layout = Layout(Settings.from_env(os.environ, {"data_dir": data_dir}).data_dir)
    check_data_folder(layout)
    return layout


def _who(command: str) -> str:
    return f"topics pipeline {command}, process {os.getpid()}"


def _queue(kind: Kind, stream: str | None, layout: Layout, holder: str = "") -> int:
    request = PipelineRequest(kind, stream, _who(kind), SystemClock().now_ms())
    RequestQueue(PosixFileSystem(), layout).add(request, SystemEntropy())
    what = kind if stream is None else f"{kind} of {stream}"
    reported = f"{holder.rstrip('.')}; " if holder else ""
    print(f"{reported}{what} is queued for the run of the pipeline that is in progress, or for the next one")
    return 0


def status(*, data_dir: DataDir = None, json: Json = False) -> int:
    """Show the pipeline status of a data folder."""
    settings = Settings.from_env(os.environ, {"data_dir": data_dir})
    fs, layout = PosixFileSystem(), Layout(settings.data_dir)
    check_data_folder(layout)
    found, run, queue = load_status(fs, layout), load_progress(fs, layout), RequestQueue(fs, layout)
    requests, paused = list(queue.waiting().values()), queue.paused()
    if json:
        asked = {"requests": msgspec.to_builtins(requests), "paused": msgspec.to_builtins(paused)}
        answer = {**msgspec.to_builtins(found), "run": msgspec.to_builtins(run), **asked}
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return 0
    show(found, None)
    if run is not None and run.ended_ms is None and is_locked(f"{layout.pipeline}/lock"):
        job = "" if run.job is None else f": {run.job.tasks_done} of {run.job.tasks} tasks of {run.job.about}"
        console().print(f"running, by {run.by}{job}")
    for one in requests:
        console().print(f"requested: {one.kind}{f' of {one.stream}' if one.stream else ''}, by {one.by}")
    if paused is not None:
        console().print(f"the server's pipeline is paused, by {paused.by}")
    return 0
