"""Pipeline worker: the process that runs rounds while there is work, waits a while, and exits.

`python -m topics.spark.pipeline` reads the settings from the environment, as the server that starts it does.
Spark is started with the first piece of work. The process may be killed at any moment: unpublished work is done again.
It exits when its standard input is closed, so that it never outlives its server.

| exit code | meaning |
|---|---|
| 0 | there is nothing to do |
| 1 | a round failed; the log has the reason |
| 2 | a setting is wrong, or differs from the one that is recorded with the data |
| 3 | another process has the pipeline |
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from topics.log.catalog_files import read_catalog
from topics.log.fs import KEEPS_DELETES, FileSystem, FolderLock
from topics.log.layout import Layout, is_object_store
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.settings import Settings, SettingsError
from topics.search.file_index.manifest import IndexStore
from topics.spark.archive.archive_plan import DELETED_SHARE, ArchiveRules
from topics.spark.iceberg.catalogs import pointer_of
from topics.spark.iceberg.table import ArchiveTable, TableFollower
from topics.spark.iceberg.typed_files import typed_name
from topics.spark.iceberg.typed_tables import TypedTable
from topics.spark.index_builds.index_plan import RETIRE_MS, IndexRules, outdated
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import SparkExecutor
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.pipeline_requests import RequestQueue
from topics.spark.pipeline.pipeline_settings import archive_root, files_of, has_archive, layout_of, record, resolve
from topics.spark.pipeline.products import Product
from topics.spark.pipeline.rounds import DeleteAcks, Executor, Pipeline
from topics.spark.pipeline.status import RunReporter, WorkerStatus, load_status, save_status
from topics.spark.pipeline.task_packing import FrameRules
from topics.spark.pipeline.typed_product import TypedProduct, typed_folders
from topics.spark.segment_reader import NoCatalogError
from topics.system.clock import Clock, SystemClock
from topics.system.entropy import SystemEntropy
from topics.system.logs import configure_logs

_log = logging.getLogger(__name__)


class PipelineBusyError(TopicsError):
    """Another process runs the pipeline of this folder."""


class UntrackedError(TopicsError):
    """A server uses the folder and does not keep deletes for an archive."""


class LazySpark:
    """An executor that starts Spark when it is first needed."""

    def __init__(self, settings: Settings, under_submit: bool = False) -> None:
        self._settings = settings
        self._under_submit = under_submit
        self._inner: SparkExecutor | None = None

    def parallelism(self) -> int:
        return self._started().parallelism()

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        return self._started().run(works, about)

    def probe(self) -> None:
        self._started().probe()

    def footprint(self) -> WorkerStatus | None:
        return self._inner.footprint() if self._inner is not None else None

    def _started(self) -> SparkExecutor:
        if self._inner is None:
            from topics.spark.session import SparkOptions, open_session  # noqa: PLC0415 - it takes seconds

            options = SparkOptions.of(self._settings, "topics pipeline", light=True)
            if self._under_submit:
                options = msgspec.structs.replace(options, master="")
            clock = SystemClock()
            begun = clock.monotonic()
            spark = open_session(options)
            start_ms = int((clock.monotonic() - begun) * 1000)
            places = (self._settings.cold_dir, archive_root(self._settings))
            self._inner = SparkExecutor(spark, *places, start_ms=start_ms)
        return self._inner

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def make_pipeline(
    settings: Settings,
    fs: FileSystem,
    executor: Executor,
    clock: Clock,
    compact: bool = False,
    frame: FrameRules | None = None,
    on_note: Callable[[str, bool], None] = lambda note, is_problem: None,
    reporter: RunReporter | None = None,
    keep_replaced: bool = True,
) -> Pipeline:
    """The pipeline with every product that the settings enable; `compact` erases all deleted records at once.

    Without `keep_replaced`, replaced files and snapshots are removed at once, without a grace for their readers.
    `on_note` receives notes for the operator, and whether an action is left to do.
    """
    layout = layout_of(settings)
    products: list[Product] = []
    if has_archive(settings):
        share = 0.0 if compact else DELETED_SHARE
        rules = ArchiveRules(
            retention_ms=settings.archive_retention_ms,
            erase_ms=settings.archive_erase_ms,
            deleted_share=share,
            file_bytes=settings.archive_file_bytes,
            keep_snapshots_ms=settings.archive_keep_snapshots_ms if keep_replaced else 0,
            # A kept snapshot must be readable.
            retire_ms=max(settings.archive_grace_ms, settings.archive_keep_snapshots_ms) if keep_replaced else 0,
        )
        root = archive_root(settings)
        archive = ArchiveProduct(fs, root, rules, SystemEntropy(), table_of(settings, fs, rules), on_note)
        products.append(archive)
        patterns = typed_streams(settings)
        if patterns or any(typed_folders(fs, root)):
            # After the archive: typed tables are built from its files and follow its deletes.
            make = typed_tables(settings, fs, rules)
            products.append(TypedProduct(fs, root, patterns, lambda: archive.state, make))
    # Only products with copies can acknowledge deletes. Deletes for an archive that is turned off are kept.
    acks_deletes = bool(products)
    if settings.search_families == "auto":
        index_rules = IndexRules(
            retire_ms=RETIRE_MS if keep_replaced else 0, erase_ms=0 if compact else settings.search_erase_ms
        )
        products.append(IndexProduct(fs, layout, index_rules, SystemEntropy()))
    places = [layout.pipeline, *([archive_root(settings)] if has_archive(settings) else ())]
    server, transfer = remote_access(settings)
    return Pipeline(fs, layout, products, executor, clock, frame, acks_deletes, places, reporter, server, transfer)


def remote_access(settings: Settings) -> tuple[str, str]:
    """The server from which tasks without the data folder read, and the place to which they write; empty without
    `pipeline_url`.

    Raises SettingsError without an object store to write to.
    """
    if settings.pipeline_url is None:
        return "", ""
    archive = archive_root(settings) if has_archive(settings) else None
    store = next((place for place in (archive, layout_of(settings).cold_root) if is_object_store(place)), None)
    if store is None:
        raise SettingsError(
            "pipeline_url is for tasks on machines without the data folder: set archive_dir or cold_dir to the URL of "
            "an object store, to which they write"
        )
    return settings.pipeline_url.rstrip("/"), f"{store}/transfer"


def table_of(settings: Settings, fs: FileSystem, rules: ArchiveRules) -> TableFollower:
    """The Iceberg table of the archive."""
    root = archive_root(settings)
    pointer = pointer_of(fs, root, settings.archive_catalog, settings.archive_table)
    table = ArchiveTable(fs, root, pointer, SystemEntropy(), rules.keep_snapshots_ms, settings.archive_file_bytes)
    return TableFollower(table, root)


def typed_streams(settings: Settings) -> list[str]:
    """Patterns of the streams that get their own table."""
    return [word.strip() for word in (settings.archive_typed or "").split(",") if word.strip()]


def typed_tables(settings: Settings, fs: FileSystem, rules: ArchiveRules) -> Callable[[str], TypedTable]:
    """A function that makes the typed table of a folder."""
    root = archive_root(settings)

    def make(folder: str) -> TypedTable:
        place = f"{root}/{folder}"
        pointer = pointer_of(fs, place, settings.archive_catalog, typed_name(settings.archive_table, folder))
        table = ArchiveTable(fs, place, pointer, SystemEntropy(), rules.keep_snapshots_ms, settings.archive_file_bytes)
        return TypedTable(fs, root, folder, table, rules.retire_ms)

    return make


def hold_pipeline(fs: FileSystem, layout: Layout, who: str) -> FolderLock:
    """Locks the pipeline of a folder: one process at a time. Raises PipelineBusyError."""
    fs.make_dirs(layout.pipeline)
    try:
        return fs.lock(f"{layout.pipeline}/lock", who)
    except BlockingIOError as error:
        raise PipelineBusyError(f"the pipeline of {layout.root} is run by {error}") from error


def check_tracked(fs: FileSystem, layout: Layout) -> None:
    """Raises UntrackedError beside a server that does not keep deletes: the archive would still show those records.

    Without a server nothing is deleted, and the next server keeps deletes because it finds an acknowledgement. The
    catalog is not evidence of a server: until the first checkpoint of a server it is that of the previous server.
    """
    DeleteAcks(fs, layout).begin()
    try:
        fs.lock(layout.lock, "a look at whether a server runs").release()
    except BlockingIOError as error:
        if KEEPS_DELETES not in str(error):
            raise UntrackedError(
                f"{layout.root} is used by {error}, which keeps no deletes for an archive: start it with "
                "TOPICS_ARCHIVE=1, or stop it first"
            ) from error


class PipelineRun(NamedTuple):
    """The pipeline of a folder, locked for this process. Leaving the context saves the outcome and unlocks it."""

    settings: Settings
    fs: FileSystem
    layout: Layout
    lock: FolderLock
    clock: Clock
    reporter: RunReporter

    def __enter__(self) -> "PipelineRun":
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        try:
            if isinstance(error, Exception):
                note_failure(self.fs, self.layout, error, self.clock)
                self.reporter.end(told(error))
            else:
                self.reporter.end(None if error is None else f"it was ended by {type(error).__name__}")
        finally:
            self.lock.release()


def open_run(
    settings: Settings,
    given: Collection[str],
    who: str,
    clock: Clock,
    reconfigure: Collection[str] = (),
    by_hand: bool = True,
) -> PipelineRun:
    """Locks the pipeline, resolves the settings with the recorded ones, and records them.

    Raises PipelineBusyError, SettingsConflictError, and for a run `by_hand` UntrackedError. The status file gets every
    error except for the first.
    """
    near, layout = PosixFileSystem(), layout_of(settings)
    lock = hold_pipeline(near, layout, who)
    try:
        settings = resolve(settings, given, reconfigure)
        if by_hand:
            check_tracked(near, layout)
        fs = files_of(settings)
        if has_archive(settings):
            record(settings, fs, reconfigure)
    except BaseException as error:
        try:
            if isinstance(error, Exception):
                note_failure(near, layout, error, clock)
        finally:
            lock.release()
        raise
    reporter = RunReporter(near, layout, clock, who)
    reporter.begin()
    return PipelineRun(settings, fs, layout, lock, clock, reporter)


class RequestWorker:
    """Runs the requests of operators in the process that has the lock of the pipeline.

    `make` makes a pipeline with an empty memory, so that it looks at every topic and file again. Its arguments are
    those of `make_pipeline`: whether it rewrites all files with deleted records, and whether it keeps replaced files.
    """

    def __init__(self, fs: FileSystem, layout: Layout, clock: Clock, make: Callable[[bool, bool], Pipeline]) -> None:
        self._fs = fs
        self._layout = layout
        self._clock = clock
        self._make = make
        self._queue = RequestQueue(fs, layout)

    def run(self) -> Pipeline | None:
        """Runs the waiting requests and returns the pipeline to continue with; None if no request waits.

        Requests that arrive meanwhile are handled by the next call.
        """
        self._queue.remove_unreadable()
        waiting = self._queue.waiting()
        if not waiting:
            return None
        kinds: set[str] = {request.kind for request in waiting.values()}
        _log.info("requests to the pipeline are done", extra={"requests": len(waiting), "kinds": sorted(kinds)})
        for stream in sorted({request.stream or "" for request in waiting.values() if request.kind == "rebuild"}):
            reason = mark_for_rebuild(self._fs, self._layout, stream, self._clock.now_ms())
            if reason is not None:
                _log.warning("index files are not rebuilt", extra={"stream": stream, "reason": reason})
        pipeline = self._make(bool(kinds & {"compact", "erase"}), "erase" not in kinds)
        if "backfill" in kinds:
            pipeline.end_quarantines()
        while _round(pipeline):
            pass
        self._queue.remove(list(waiting))
        return self._make(False, True)


def mark_for_rebuild(fs: FileSystem, layout: Layout, stream: str, now_ms: int) -> str | None:
    """Marks the index files of a stream as outdated, under the lock of the pipeline; returns why it could not."""
    catalog = read_catalog(fs, layout)
    topic = None if catalog is None else catalog.by_name().get(stream)
    if topic is None:
        return "it has no sealed entries"
    store = IndexStore(fs, layout)
    manifest = store.load(topic.topic_id)
    if manifest is None or not manifest.files:
        return "it has no index files"
    store.save(outdated(manifest, now_ms))
    return None


def _round(pipeline: Pipeline) -> bool:
    try:
        return pipeline.round()
    except NoCatalogError:
        return False


def run_until_idle(
    pipeline: Pipeline,
    settings: Settings,
    clock: Clock,
    wait: Callable[[float], object],
    once: bool = False,
    requests: RequestWorker | None = None,
) -> Pipeline:
    """Runs rounds until there was no work for `pipeline_idle_ms`; with `once`, until there is none. Requests are done
    between two rounds, in their own pipeline. Returns the pipeline of the last round."""
    last_work = clock.monotonic()
    while True:
        fresh = None if requests is None else requests.run()
        pipeline = pipeline if fresh is None else fresh
        if _round(pipeline) or fresh is not None:
            last_work = clock.monotonic()
            continue
        if once or clock.monotonic() - last_work >= settings.pipeline_idle_ms / 1000:
            return pipeline
        wait(settings.pipeline_poll_ms / 1000)


def main() -> int:
    settings = Settings.from_env(os.environ)
    configure_logs(settings.log_format, level=settings.log_level)
    # Safe at any moment, since publishing is atomic; and faster than waiting for a job that is repeated anyway.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getpgrp() != os.getpid():
        # The server ends this process and its Java process when it drains; the terminal's Ctrl-C must not reach them.
        os.setpgrp()
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    clock = SystemClock()
    try:
        who = f"the server's process {os.getpid()}"
        run = open_run(settings, Settings.given(os.environ), who, clock, by_hand=False)
    except PipelineBusyError as error:
        _log.warning("another process has the pipeline", extra={"error": str(error)})
        return 3
    except SettingsError as error:
        _log.error("the pipeline's settings are refused", extra={"error": str(error)})
        return 2
    spark = LazySpark(run.settings)
    try:
        with run:

            def make(compact: bool, keep: bool) -> Pipeline:
                return make_pipeline(
                    run.settings, run.fs, spark, clock, compact, reporter=run.reporter, keep_replaced=keep
                )

            requests = RequestWorker(run.fs, run.layout, clock, make)
            run_until_idle(make(False, True), run.settings, clock, threading.Event().wait, requests=requests)
    except Exception:
        _log.exception("the pipeline failed")
        return 1
    finally:
        spark.close()
    return 0


def note_failure(fs: FileSystem, layout: Layout, error: Exception, clock: Clock) -> None:
    status = load_status(fs, layout)
    save_status(
        fs,
        layout,
        msgspec.structs.replace(
            status,
            running=False,
            updated_ms=clock.now_ms(),
            failures=status.failures + 1,
            error=told(error),
        ),
    )


def told(error: Exception) -> str:
    """Returns an error in the form of the status."""
    return f"{type(error).__name__}: {error}"[:500]


def _end_with_the_server() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(0)
