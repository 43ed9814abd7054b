"""Lease keeper: takes, renews and releases the lease of the primary in the backup storage.

A separate thread renews it (`ops.failover.lease`), so that neither a long turn of the event loop nor a slow restore
lets it end. The event loop calls `check` before each write, which reads two numbers.
"""

import contextlib
import logging
import threading
from collections.abc import Callable

import msgspec

from topics.log.fs import FileSystem, read_whole
from topics.log.object_store.tiered_fs import put_new
from topics.model.errors import LeaseEndedError, NotPrimaryError, RemoteUnavailableError
from topics.ops.failover.lease import (
    RENEWALS,
    HeldLease,
    Identity,
    LeaseRecord,
    SeqReserve,
    decode_record,
    encode_record,
    record_name,
    record_number,
    released,
    renewed,
    taken,
)

_log = logging.getLogger(__name__)
_NONE = LeaseRecord(number=0, term=0, holder="", writer="", lease_ms=0)
"""The number before the first record."""
_READS_MAX = 5
"""The newest record may be removed between the listing and the read; the number of retries."""


class LeasePlace:
    """The records of the lease in a storage."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._folder = f"{root}/lease"

    def newest(self) -> LeaseRecord | None:
        """Returns the valid record; None before the first one. Raises OSError if the storage does not answer."""
        for _ in range(_READS_MAX):
            numbers = self._numbers()
            if not numbers:
                return None
            record = self._read(numbers[-1])
            if record is not None:
                return record
        raise OSError("the lease of the primary changes too fast to be read")

    def make(self, record: LeaseRecord) -> LeaseRecord | None:
        """Creates a record.

        Returns the record of that number if it is this writer's and the newest; its content may come from an earlier
        attempt. Raises OSError if the outcome is unknown.
        """
        self._fs.make_dirs(self._folder)
        try:
            put_new(self._fs, self._path(record.number), encode_record(record), record.writer)
        except FileExistsError:
            found = self._read(record.number)
            if found is None or found.writer != record.writer:
                return None
            # An earlier attempt succeeded, and its answer was lost.
            record = found
        numbers = self._numbers()
        if numbers[-1:] != [record.number]:
            return None
        for number in numbers[:-1]:
            with contextlib.suppress(OSError):
                self._fs.remove(self._path(number))
        return record

    def _numbers(self) -> list[int]:
        try:
            names = self._fs.list_dir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(number for name in names if (number := record_number(name)) is not None)

    def _read(self, number: int) -> LeaseRecord | None:
        data = read_whole(self._fs, self._path(number))
        if data is None:
            return None
        try:
            return decode_record(data)
        except ValueError as error:
            raise OSError(f"{self._path(number)} cannot be read: {error}") from error

    def _path(self, number: int) -> str:
        return f"{self._folder}/{record_name(number)}"


class LeaseKeeper:
    """The lease of one process. `steady` is a monotonic clock in milliseconds. Thread-safe."""

    def __init__(self, place: LeasePlace, who: Identity, steady: Callable[[], int], reserve: int = 0) -> None:
        """`reserve` is the least number of seqs that is reserved (`SeqReserve`)."""
        self._place = place
        self._least = reserve
        self.seqs = SeqReserve(reserve, 0)
        self._who = who
        self._steady = steady
        self._held = HeldLease(who.lease_ms)
        self._lock = threading.Lock()
        """Held while a record is created."""
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.primary: LeaseRecord | None = None
        """The newest record of another server, if any."""
        self.shows_all = True
        """Whether a takeover would have everything in the data folder; else it is served after the first backup."""
        self._moment = 0
        self.restored_from = ""
        """The lineage that a takeover restored the data folder from."""
        self.renewals = self.failures = 0
        self.on_lost: Callable[[], None] = lambda: None
        """Called by the thread once, when another server has the lease."""

    # Taking

    def take(self, newest: LeaseRecord | None) -> bool:
        """Takes the next term after a record.

        Returns whether that succeeded. Raises OSError if the outcome is unknown.
        """
        self.seqs = SeqReserve(self._least, 0 if newest is None else newest.skipped)
        return self._make(lambda own: taken(newest, self._who)) is not None

    def start(self) -> None:
        """Renews the lease from now on, in a thread."""
        self._thread = threading.Thread(target=self._renew_for_ever, name="lease", daemon=True)
        self._thread.start()

    # Holding

    @property
    def record(self) -> LeaseRecord:
        """The own record."""
        assert self._held.record is not None
        return self._held.record

    @property
    def term(self) -> int:
        return self.record.term

    @property
    def is_valid(self) -> bool:
        """Whether a write can be accepted without a closer look."""
        return self._held.is_valid(self._steady()) and self.seqs.has_room(1)

    @property
    def left_ms(self) -> int:
        """Returns the time for which writes are accepted without another renewal."""
        until = self._held.until_ms
        return 0 if until is None else max(until - self._steady(), 0)

    def check(self, seqs: int = 0) -> None:
        """Raises unless this server may acknowledge writes, and give out so many seqs in one operation."""
        if self._held.is_valid(self._steady()):
            if seqs and not self.seqs.has_room(seqs):
                self.seqs.want(seqs)
                self._wake.set()
                raise RemoteUnavailableError("more records wait to be shipped than seqs are reserved in the lease")
            return
        if self.primary is not None:
            raise NotPrimaryError("" if self.primary.released else self.primary.address)
        raise LeaseEndedError()

    def give(self, seqs: int) -> None:
        """So many seqs are given out."""
        self.seqs.give(seqs)
        if self.seqs.is_short:
            self._wake.set()

    @property
    def given(self) -> int:
        """All seqs that were given out so far."""
        return self.seqs.given

    def shipped(self, given: int, moment: int) -> None:
        """Everything given out up to here, and everything logged up to a moment, is in the backup storage."""
        self.seqs.shipped(given)
        self._moment = moment

    def announce(self, lineage: str) -> None:
        """Publishes this server's backups as those that a takeover restores.

        Raises OSError or TopicsError on failure; then nothing may be acknowledged because of them.
        """
        made = None
        for _ in range(2):  # A renewal without an answer may have taken the number.
            made = self._make(lambda own: renewed(own, lineage))
            if made is None or made.lineage == lineage:
                break
        if made is None or made.lineage != lineage:
            self._look()
            self.check()
            raise LeaseEndedError()

    def suspect(self) -> None:
        """Checks immediately whether another server has taken over."""
        self._wake.set()

    def release(self) -> None:
        """Releases the lease, so that the next server can start immediately. If that fails, the next one waits."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._held.until_ms is not None:
            with contextlib.suppress(OSError):
                self._make(lambda own: released(own, self._who.writer), stops=True)
        self._held.lose()

    def _renew_for_ever(self) -> None:
        while not self._stopped:
            self._wake.wait(self._who.lease_ms / RENEWALS / 1000)
            self._wake.clear()
            if self._stopped:
                return
            self.renew()
            if self.primary is not None:
                return

    def still_holds(self) -> bool:
        """Whether no other server had taken the next term when this was called; asks the storage."""
        failures = self.failures
        self.renew()
        return self.primary is None and self.failures == failures

    def renew(self) -> None:
        """Tries to renew the lease once, and looks who has it where another server was first."""
        try:
            if self._make(renewed) is None:
                self._look()
        except OSError as error:
            self.failures += 1
            _log.warning("lease renewal failed", extra={"error": str(error), "left_ms": self.left_ms})

    def _make(self, build: Callable[[LeaseRecord], LeaseRecord], stops: bool = False) -> LeaseRecord | None:
        """Creates the record after this server's newest one. Returns None if another server was first."""
        with self._lock:
            if self.primary is not None:
                return None
            record = self.seqs.plan(build(self._held.record or _NONE), stops)
            record = msgspec.structs.replace(record, moment=self._moment)
            self._held.ask(record, self._steady())
            made = self._place.make(record)
            if made is not None:
                self._held.confirm(made)
                self.seqs.confirm(made)
                self.renewals += 1
            return made

    def _look(self) -> None:
        """Handles a record that could not be created because another server was first."""
        newest = self._place.newest()
        own = self._held.record
        if newest is None or own is None or (newest.writer == self._who.writer and not newest.released):
            return
        with self._lock:
            if self.primary is not None:
                return
            self.primary = newest
            self._held.lose()
        _log.error("primary lease lost", extra={"term": own.term, "new_term": newest.term, "primary": newest.address})
        self.on_lost()
