"""`topics pipeline status`."""

import os
from typing import Annotated

import msgspec
from cyclopts import Parameter

from topics.cli.pipeline.showing import DataDir, show
from topics.cli.shared.failures import CommandError
from topics.config.settings import Settings
from topics.spark.pipeline.status import load_status
from topics.storage.layout import Layout
from topics.storage.posix import PosixFileSystem

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
