"""Showing where the pipeline stands."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.screen import console
from topics.spark.pipeline.status import PipelineStatus

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
