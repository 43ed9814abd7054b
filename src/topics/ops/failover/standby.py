"""Standby: a server that waits for the lease of the primary, and becomes the primary when it gets it.

While it waits it has no engine: it answers requests with the address of the primary. A restarted primary uses this
module as well; it continues with its data folder unless another server had the lease meanwhile.
"""

import logging
import threading
from collections.abc import Callable

from topics.engine.core import EngineOptions
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.model.settings import SettingsError
from topics.ops.failover.lease import RENEWALS, Identity, LeaseRecord, LeaseWatch
from topics.ops.failover.lease_keeper import LeaseKeeper, LeasePlace
from topics.ops.failover.takeover import Place, note_holder, read_holder, take_over
from topics.ops.failover.unshipped import UnknownTailError, ship_tail
from topics.system.clock import Clock
from topics.system.entropy import Entropy

_log = logging.getLogger(__name__)
_TOKEN_BYTES = 8
_LOOK_MS = 500
"""A standby looks at the lease so often, to see soon that it was released."""


class Standby:
    """Waits for the lease. Blocks, so it runs in a separate thread; `stop` ends the wait."""

    def __init__(
        self, place: Place, fs: FileSystem, options: EngineOptions, address: str, lease_ms: int, clock: Clock,
        entropy: Entropy, tell: Callable[[str | None], None],
    ) -> None:  # fmt: skip
        """`address` is the URL of this server for others.

        `tell` gets the address of the current primary, and None when this server is to become the primary.
        """
        self.stop = threading.Event()
        self._place = place
        self._leases = LeasePlace(place.fs, place.root)
        self._fs = fs
        self._options = options
        self._layout = Layout(options.data_dir)
        self._clock = clock
        self._entropy = entropy
        self._tell = tell
        self._own = read_holder(fs, self._layout)
        self._who = Identity(self._token(), self._token(), address, lease_ms)
        """The holder, with a new name for the data folder if its content comes from another primary."""
        self._watch = LeaseWatch()
        self._told: str | None = None

    def become_primary(self, waits: bool) -> LeaseKeeper | None:
        """Returns the lease, with the data folder ready to be opened; None if it was stopped before.

        Without `waits` another primary is an error: SettingsError. The lease is renewed from here on; it is released
        if the takeover fails.
        """
        while not self.stop.is_set():
            found = self._try(waits)
            if found is None:
                self.stop.wait(min(self._who.lease_ms / RENEWALS, _LOOK_MS) / 1000)
                continue
            keeper, newest = found
            self._tell(None)
            keeper.start()
            try:
                self._prepare(keeper, newest)
            except BaseException:
                keeper.release()
                raise
            return keeper
        return None

    def _prepare(self, keeper: LeaseKeeper, newest: LeaseRecord | None) -> None:
        # Not the name in the new record: an attempt of this process without an answer may have made the last one.
        if newest is not None and newest.holder != self._own:
            take_over(
                self._place, self._fs, newest, keeper.record, self._options, self._clock, self._entropy
            )  # fmt: skip
            keeper.restored_from = newest.lineage
        elif newest is not None:
            # A server that took over before the tail was there did not count it; one that does so later counts it.
            keeper.shows_all = self._ship_tail(keeper.term) and keeper.still_holds()
        _log.info("primary lease taken", extra={"term": keeper.term, "lease_ms": self._who.lease_ms})

    def _ship_tail(self, term: int) -> bool:
        """Ships the log of the own folder that was not shipped; whether a takeover has all of the folder then."""
        try:
            return ship_tail(self._place.fs, self._place.root, self._fs, self._layout, term)
        except UnknownTailError as error:
            _log.info("unshipped log unknown", extra={"folder": self._layout.root, "why": str(error)})
            return False

    def _try(self, waits: bool) -> tuple[LeaseKeeper, LeaseRecord | None] | None:
        try:
            newest = self._leases.newest()
            self._watch.see(newest, self._steady())
            continues = newest is None or newest.holder == self._own
            if not self._watch.is_over(self._steady()):
                assert newest is not None
                if not continues:
                    self._tell(newest.address)
                if not continues and not waits:
                    raise SettingsError(
                        f"{newest.address or 'another server'} is the primary at {self._place.root}, in term "
                        f"{newest.term}. Start this server with --standby to wait for its lease"
                    )
                self._say(f"the primary is {newest.address or newest.holder}, in term {newest.term}")
                return None
            if newest is not None and not continues and not newest.lineage:
                self._say(f"the primary of term {newest.term} left no backup that can be taken over: start it again")
                return None
            who = self._who
            if continues:
                # Written first: a later crash must not lose the name.
                holder = self._own = self._own or who.holder
                note_holder(self._fs, self._layout, holder)
                who = who._replace(holder=holder)
            keeper = LeaseKeeper(self._leases, who, self._steady, self._options.disk_reserve_seqs)
            return (keeper, newest) if keeper.take(newest) else None
        except (OSError, TopicsError) as error:
            if isinstance(error, SettingsError):
                raise
            self._say(f"the backup storage does not answer: {error}")
            return None

    def _say(self, why: str) -> None:
        """Logs why it waits, once for each reason."""
        if why != self._told:
            self._told = why
            _log.info("waiting for the primary lease", extra={"why": why})

    def _steady(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _token(self) -> str:
        return self._entropy.token(_TOKEN_BYTES).hex()
