"""Reads of a standby: keeps a follower of the primary open while the server waits for the lease.

Files and the backup storage are read by threads; frames are applied on the event loop, a few milliseconds at a time.
Where the log does not go on, another follower is built beside the one that serves reads, and takes its place once it is
complete: meanwhile readers get an older state, and the lag grows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.following import FollowError
from topics.log.fs import FileSystem
from topics.model.errors import TopicsError
from topics.ops.backup.backup_store import BackupDamaged, BackupPlace
from topics.ops.failover.follower import READ_AHEAD, Follower, Part, build, remove_tree
from topics.ops.failover.lease_keeper import LeasePlace
from topics.ops.failover.takeover import Place
from topics.system.clock import Clock
from topics.system.entropy import Entropy

_log = logging.getLogger(__name__)
T = TypeVar("T")

_SLICE_S = 0.004
"""So long frames are applied before the loop does other work."""
_CHECK_S = 1.0
_RETRY_S = 2.0
_BEHIND_BYTES = 128 * 1024 * 1024
"""Above this, frames are applied again once sealed records were written."""


class StandbyReads:
    """The follower of one process. Everything but `build` and the reads runs on the event loop."""

    def __init__(
        self, place: Place, fs: FileSystem, options: EngineOptions, clock: Clock, entropy: Entropy, poll_ms: int,
        primary: Callable[[], str], opened: Callable[[Engine], Awaitable[None]],
        in_thread: Callable[[Callable[[], Follower | None]], Awaitable[Follower | None]], boot_id: str = "",
    ) -> None:  # fmt: skip
        """`opened` gets each follower's engine; it serves it and closes the one before. `in_thread` runs a long call in
        a thread that does not hold up the end of the process."""
        self._place = place
        self._fs = fs
        self._options = options
        self._clock = clock
        self._monotonic = clock.monotonic
        self._entropy = entropy
        self._poll_s = poll_ms / 1000
        self._primary = primary
        self._opened = opened
        self._in_thread = in_thread
        self._boot_id = boot_id
        self._leases = LeasePlace(place.fs, place.root)
        self._pool = ThreadPoolExecutor(READ_AHEAD + 1, "standby")
        self._stopped = False
        self._folder = 0
        self._told: str | None = None
        self._slice_ends = 0.0
        self.follower: Follower | None = None
        self.restores = self.failures = self.objects = 0
        """Followers that were built, attempts that failed, and objects that were applied."""

    @property
    def lag_ms(self) -> int:
        """How far the state is behind the clock of this machine: everything that the primary logged before is
        visible."""
        return 0 if self.follower is None else max(self._clock.now_ms() - self.follower.moment, 0)

    def folder(self, number: int) -> str:
        """The follower's folder, beside the data folder. Two alternate."""
        return f"{self._options.data_dir}.standby-{number % 2}"

    def stop(self) -> None:
        """Ends `run` soon. The last follower stays open."""
        self._stopped = True

    async def run(self) -> None:
        """Builds a follower, follows with it, and begins again where that ends."""
        while not self._stopped:
            try:
                follower = await self._in_thread(self._build)
                if follower is None:
                    await self._sleep(self._poll_s)
                    continue
                self.restores += 1
                self.follower = follower
                await self._opened(follower.engine)
                await self._off(lambda: remove_tree(self._fs, self.folder(self._folder - 1)))
                await self._follow(follower)
            except FollowError as error:
                _log.info("standby restores again", extra={"why": str(error)})
            except (OSError, TopicsError, BackupDamaged, ValueError) as error:
                self._say(str(error))
                await self._sleep(_RETRY_S)
            except Exception:
                # A defect must not leave readers with a state that grows old without a word.
                self.failures += 1
                _log.exception("standby cannot follow")
                await self._sleep(_RETRY_S)

    def clean_up(self) -> None:
        """Removes the folders of followers once their engines are closed. Blocks."""
        for number in range(2):
            try:
                remove_tree(self._fs, self.folder(number))
            except OSError as error:
                # The next start as a standby replaces it.
                _log.warning("standby folder kept", extra={"folder": self.folder(number), "error": str(error)})

    def close(self) -> None:
        """Ends the threads. Call it after `run` has ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _build(self) -> Follower | None:
        record = self._leases.newest()
        if record is None or not record.lineage:
            return None
        self._folder += 1
        place = BackupPlace(self._place.fs, self._place.root, record.lineage)
        return build(
            place, self._fs, self.folder(self._folder), self._options, self._clock, self._entropy, self._primary,
            self._boot_id, lambda: self._stopped,
        )  # fmt: skip

    async def _follow(self, follower: Follower) -> None:
        tail, engine, checked_at = follower.tail, follower.engine, 0.0
        while not self._stopped:
            if engine.sealer.backlog_bytes > _BEHIND_BYTES:
                await self._sleep(self._poll_s)
                continue
            parts: list[Part] = []
            moment = 0
            try:
                if self._monotonic() - checked_at >= _CHECK_S:
                    checked_at = self._monotonic()
                    moment = await self._off(lambda: self._check(follower))
                parts = await self._off(lambda: tail.read(self._pool))
            except (OSError, TopicsError, BackupDamaged) as error:
                self._say(str(error))
                await self._sleep(_RETRY_S)
            else:
                self._told = None
            if parts:
                await self._apply(follower.apply(parts, self._is_due))
                self.objects += len(parts)
                continue
            if moment and not tail.is_fenced:
                # Everything that was shipped before the lease was renewed has been read: an idle primary ships nothing.
                await self._apply(follower.advance(moment, self._is_due))
            await self._sleep(self._poll_s)

    async def _apply(self, steps: Iterator[None]) -> None:
        self._slice_ends = self._monotonic() + _SLICE_S
        for _ in steps:
            await asyncio.sleep(0)
            self._slice_ends = self._monotonic() + _SLICE_S

    def _is_due(self) -> bool:
        return self._monotonic() >= self._slice_ends

    def _check(self, follower: Follower) -> int:
        """Raises FollowError where the log does not go on. Returns the moment up to which the primary has shipped
        everything; 0 if that is unknown."""
        record = self._leases.newest()
        if record is None or not record.lineage:
            return 0
        follower.tail.check(record.lineage)
        return record.moment if record.lineage_term == record.term else 0

    async def _off(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def _sleep(self, seconds: float) -> None:
        if not self._stopped:
            await asyncio.sleep(seconds)

    def _say(self, why: str) -> None:
        """Logs a failure once until something succeeds."""
        self.failures += 1
        if why != self._told:
            self._told = why
            _log.warning("standby cannot follow", extra={"error": why})
