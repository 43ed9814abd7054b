"""Pipeline requests: work that operators request from the process that runs the pipeline, and the pause of the server's
pipeline.

    pipeline/requests/<ms>-<token>.json    JSON with a checksum: a `PipelineRequest`; removed when it is done
    pipeline/paused.json                   JSON with a checksum: a `Pause`; there while the server's pipeline is paused

A request is a file, so that it waits for a process that is busy, for one that is started later, and across restarts.
The process that runs the pipeline takes the waiting requests between two rounds, runs them in rounds of a separate
pipeline, and removes the files once such a round finds nothing more to do. A process that is killed before that leaves
them to the next one; every request may be done twice.
"""

import logging
from collections.abc import Sequence
from typing import Literal

import msgspec

from topics.log.fs import FileSystem, read_whole, replace_file
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.spark.pipeline.status import checksummed, opened
from topics.system.entropy import Entropy

_log = logging.getLogger(__name__)

Kind = Literal["rebuild", "compact", "erase", "backfill"]
REQUESTS_MAX = 1000
"""The maximum number of waiting requests: each is a file, and a server reads all of them."""


class PipelineRequest(msgspec.Struct, frozen=True):
    """`rebuild` builds the index files of a stream again. `compact` rewrites all files with deleted records. `erase`
    does the same and removes the replaced files and snapshots at once. `backfill` looks at every topic again, also at
    those that are left out because they failed."""

    kind: Kind
    stream: str | None
    by: str
    since_ms: int


class Pause(msgspec.Struct, frozen=True):
    by: str
    since_ms: int


class TooManyRequestsError(TopicsError):
    """Too many requests are waiting."""


class RequestQueue:
    """The waiting requests of a data folder, by the names of their files."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._folder = f"{layout.pipeline}/requests"
        self._paused = f"{layout.pipeline}/paused.json"
        self._read: dict[str, PipelineRequest | None] = {}

    def add(self, request: PipelineRequest, entropy: Entropy) -> None:
        """Raises TooManyRequestsError."""
        self._fs.make_dirs(self._folder)
        if len(self._names()) >= REQUESTS_MAX:
            raise TooManyRequestsError(
                f"{REQUESTS_MAX} requests wait for the pipeline already. `topics pipeline status` shows whether it runs"
            )
        name = f"{request.since_ms:013d}-{entropy.token(8).hex()}.json"
        replace_file(self._fs, f"{self._folder}/{name}", checksummed(request))

    def waiting(self) -> dict[str, PipelineRequest]:
        """The requests in order, without those that cannot be read. A file is read once."""
        self._read = {
            name: self._read[name]
            if name in self._read
            else opened(read_whole(self._fs, f"{self._folder}/{name}"), PipelineRequest)
            for name in self._names()
        }
        return {name: request for name, request in sorted(self._read.items()) if request is not None}

    def remove_unreadable(self) -> None:
        """Removes damaged files, whose requests cannot be read. Requires the lock."""
        self.waiting()
        damaged = [name for name, request in self._read.items() if request is None]
        for name in damaged:
            _log.error("a request to the pipeline cannot be read", extra={"path": f"{self._folder}/{name}"})
        self.remove(damaged)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._fs.remove(f"{self._folder}/{name}")
        if names:
            self._fs.sync_dir(self._folder)

    def pause(self, by: str, now_ms: int) -> None:
        self._fs.make_dirs(self._folder.rpartition("/")[0])
        replace_file(self._fs, self._paused, checksummed(Pause(by, now_ms)))

    def resume(self) -> bool:
        """Ends the pause. Returns whether there was one."""
        there = self._fs.exists(self._paused)
        if there:
            self._fs.remove(self._paused)
            self._fs.sync_dir(self._folder.rpartition("/")[0])
        return there

    def paused(self) -> Pause | None:
        data = read_whole(self._fs, self._paused)
        # A damaged file still shows that a pause was requested.
        return None if data is None else opened(data, Pause) or Pause("a file that cannot be read", 0)

    def _names(self) -> list[str]:
        try:
            return [name for name in self._fs.list_dir(self._folder) if name.endswith(".json")]
        except FileNotFoundError:
            return []
