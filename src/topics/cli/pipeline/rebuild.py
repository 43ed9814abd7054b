"""`topics pipeline rebuild`."""

import os

import msgspec

from topics.cli.pipeline.showing import DataDir
from topics.cli.shared.failures import CommandError
from topics.cli.shared.needs import need_spark
from topics.config.settings import Settings
from topics.core.errors import FolderBusyError
from topics.storage.catalog import read_catalog
from topics.storage.layout import Layout
from topics.storage.posix import PosixFileSystem
from topics.system.clock import SystemClock


def rebuild(stream: str, /, *, data_dir: DataDir = None) -> int:
    """Have the indexes of a stream made again by the next run. Those that are there answer until then.

    Parameters
    ----------
    stream
        The stream's name.
    """
    need_spark("the pipeline")
    # These import numpy and Arrow, which the other commands must not need.
    from topics.spark.families.planning import outdated  # noqa: PLC0415
    from topics.spark.pipeline.status import load_status, save_status  # noqa: PLC0415
    from topics.spark.pipeline.worker import PipelineBusyError, hold_pipeline  # noqa: PLC0415
    from topics.storage.companions import FamilyStore  # noqa: PLC0415

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
        store = FamilyStore(fs, layout)
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
