"""The system streams of one server."""

from collections.abc import Callable

import msgspec

from topics.streams.early import Later
from topics.streams.service import Streams
from topics.streams.system.lifecycle_log import LifecycleLog
from topics.streams.system.metrics_log import MetricsLog
from topics.streams.system.readings import Around


class SystemOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of system streams; `topics.config` explains each."""

    streams_registry: bool = True
    streams_metrics: bool = True
    streams_metrics_ms: int = 10_000
    streams_metrics_retention_ms: int = 604_800_000


class SystemStreams:
    def __init__(self, streams: Streams, options: SystemOptions, later: Later, around: Callable[[], Around]) -> None:
        """`around` tells what is known outside of the engine."""
        self.lifecycle = LifecycleLog(streams, later) if options.streams_registry else None
        self.metrics = (
            MetricsLog(streams, later, around, options.streams_metrics_ms, options.streams_metrics_retention_ms)
            if options.streams_metrics
            else None
        )

    def start(self) -> None:
        for stream in (self.lifecycle, self.metrics):
            if stream is not None:
                stream.start()
