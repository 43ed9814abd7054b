"""Lease of the primary: which server may acknowledge writes, decided by the backup storage (also known as: leader
election, fencing).

The lease is a series of numbered records in the storage, `lease/<16 digits>.json` below its root. A record is created
with a conditional put, so of two servers that create the same number, one succeeds. The highest number is valid. Lower
ones are removed, so a server that has created a record checks again that it is the highest: after a sleep it could have
recreated a number that was removed.

| a record is made by | with | when |
|---|---|---|
| the holder, to renew | the same term | every quarter of `lease_ms` |
| the holder, to stop, or an operator | the same term, `released` | on a clean stop, `topics promote` |
| another server, or a new process of the holder | the next term | the newest is released, or `lease_ms` old |

Time. A holder may acknowledge until `lease_ms` minus `margin_ms` after it *began* to create its newest record, by its
own clock. Others wait `lease_ms` after they first *saw* that record, by theirs. The clocks need not agree on the time,
only on its rate; the margin (an eighth) covers differences of the rate and operations in flight at the end of the
lease. A monotonic clock that stops while a machine is suspended breaks this assumption; class `remote` does not rely on
it, because log is shipped with conditional puts, too (`ops.failover.takeover`).

Seqs. A record has `reserve`: more seqs than any topic may have been given behind the state that a takeover restores. A
holder gives out no more (`SeqReserve`), so a takeover skips exactly that many. A clean stop ships everything and
records 0.

This module decides and does no input or output, which `ops.failover.lease_keeper` does. `tests/property/
test_lease_protocol.py` searches all states of two servers that follow it.
"""

from typing import NamedTuple

import msgspec

from topics.log.fs import add_checksum, check_json
from topics.log.layout import number_in

FORMAT = 1
_MARGIN_PART = 8
RENEWALS = 4
"""The number of renewals in `lease_ms`."""
UNRESERVED = 10_000_000
"""The reserve of each term in records of earlier releases, which have none: more seqs than a topic gives out between
two uploads of its log."""
OPERATION_MAX = 16_384
"""Room that an operation needs whose number of seqs is not known when it is admitted: the longest takes 10,000."""
RESERVE_MIN = 2 * OPERATION_MAX
_UNKNOWN = -1


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    number: int
    term: int
    """The number of processes that have been the primary."""
    holder: str
    """The name of the primary's data folder."""
    writer: str
    """The process that made this record."""
    address: str = ""
    """The URL of the primary for clients and other servers."""
    lease_ms: int
    lineage: str = ""
    """The backups that have the newest state; empty before the first one."""
    lineage_term: int = 0
    """The term in which these backups were made."""
    released: bool = False
    """Whether the lease is released, so that the next server need not wait."""
    reserve: int = _UNKNOWN
    """How many seqs any topic may have behind these backups and the shipped log."""
    moment: int = 0
    """Everything that this primary logged up to this moment was shipped before the record was made, for standbys; 0 if
    it is unknown."""

    @property
    def skipped(self) -> int:
        """How many seqs a takeover from this record skips."""
        return UNRESERVED * max(self.term + 1 - self.lineage_term, 1) if self.reserve == _UNKNOWN else self.reserve


_decoder = msgspec.json.Decoder(LeaseRecord)


def encode_record(record: LeaseRecord) -> bytes:
    return add_checksum(msgspec.json.encode(record))


def decode_record(data: bytes) -> LeaseRecord:
    """Raises ValueError for invalid records and for unknown formats."""
    try:
        record = _decoder.decode(check_json(data))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if record.format != FORMAT:
        raise ValueError(f"it has format {record.format}, and format {FORMAT} is known here")
    return record


def record_name(number: int) -> str:
    return f"{number:016d}.json"


def record_number(name: str) -> int | None:
    """Returns the number of a record from its name; None for other names."""
    return number_in(name, "", ".json")


def margin_ms(lease_ms: int) -> int:
    """Returns the time by which a holder stops before the lease ends for others."""
    return max(lease_ms // _MARGIN_PART, 1)


class Identity(NamedTuple):
    """A process that wants to be the primary."""

    holder: str
    writer: str
    address: str
    lease_ms: int


def taken(newest: LeaseRecord | None, who: Identity) -> LeaseRecord:
    """Returns the record that makes this server the primary.

    It names the backups of the last primary until the server has others.
    """
    return LeaseRecord(
        number=1 if newest is None else newest.number + 1, term=1 if newest is None else newest.term + 1,
        holder=who.holder, writer=who.writer, address=who.address, lease_ms=who.lease_ms,
        lineage="" if newest is None else newest.lineage, lineage_term=0 if newest is None else newest.lineage_term,
    )  # fmt: skip


def renewed(own: LeaseRecord, lineage: str = "") -> LeaseRecord:
    """Returns the next record of the holder; `lineage` names its own backups, after they have its state.

    The reserve is added by the holder (`SeqReserve`).
    """
    record = msgspec.structs.replace(own, number=own.number + 1)
    return msgspec.structs.replace(record, lineage=lineage, lineage_term=own.term) if lineage else record


def released(newest: LeaseRecord, writer: str) -> LeaseRecord:
    """Returns the record that ends a term early."""
    return msgspec.structs.replace(newest, number=newest.number + 1, writer=writer, released=True)


class SeqReserve:
    """The seqs that the holder of the lease may give out before its log is shipped.

    One number for all topics, so that an append costs one addition: none of them has more seqs that are not shipped
    than all together. It is doubled when half of it is used, halved when an eighth would do, and 0 after a clean stop.
    """

    def __init__(self, least: int, inherited: int) -> None:
        """`inherited` are seqs behind the state that a takeover would restore that were given out or skipped before:
        they count until there is a backup of this holder."""
        self._least = max(least, RESERVE_MIN)
        self._inherited = inherited
        self.given = 0
        """All seqs that were given out so far."""
        self._shipped = self._peak = self._wanted = 0
        self.limit = 0
        """How many may be given out behind the shipped ones: as many as a record has that was made."""

    @property
    def used(self) -> int:
        """How many were given out that are not known to be shipped."""
        return self.given - self._shipped

    @property
    def is_short(self) -> bool:
        """Whether a larger reserve should be recorded."""
        return 2 * self.used > self.limit or self._wanted > self.limit

    def has_room(self, count: int) -> bool:
        return self.used + max(count, OPERATION_MAX) <= self.limit

    def want(self, count: int) -> None:
        """An operation that takes so many waits for a larger reserve."""
        self._wanted = max(self._wanted, self.used + 2 * max(count, OPERATION_MAX))

    def give(self, count: int) -> None:
        self.given += count

    def shipped(self, given: int) -> None:
        """Everything that was given out up to here is in the shipped log, or in a backup that was announced."""
        self._peak = max(self._peak, self.used)
        self._shipped = max(self._shipped, given)

    def plan(self, record: LeaseRecord, stops: bool = False) -> LeaseRecord:
        """A record that is about to be made, with its reserve. From here on no more are given out than it has, even if
        it is lower than before."""
        own = max(self.limit, self._least)
        if stops and not self.used:
            own = 0
        elif self.is_short and self.limit:
            own = max(2 * own, self._wanted)
        elif 8 * max(self._peak, self.used) < own:
            own = max(own // 2, self._least)
        self._peak = 0
        self.limit = min(self.limit, own)
        return msgspec.structs.replace(record, reserve=self._before(record) + own)

    def confirm(self, record: LeaseRecord) -> None:
        """A record was made, perhaps by an earlier attempt than the last one that was planned."""
        self.limit = record.reserve - self._before(record)
        if self._wanted <= self.limit:
            self._wanted = 0
        self._inherited = self._before(record)

    def _before(self, record: LeaseRecord) -> int:
        return 0 if record.lineage_term == record.term else self._inherited


class LeaseWatch:
    """Tracks how long the lease was not renewed, as seen by another server."""

    def __init__(self) -> None:
        self.newest: LeaseRecord | None = None
        self._seen_at = 0

    def see(self, record: LeaseRecord | None, now_ms: int) -> None:
        """Notes the newest record; `now_ms` is the steady clock after it was read."""
        if record is None or self.newest is None or record.number != self.newest.number:
            self.newest, self._seen_at = record, now_ms

    def is_over(self, now_ms: int) -> bool:
        """Returns whether another server may take the next term."""
        newest = self.newest
        return newest is None or newest.released or now_ms - self._seen_at >= newest.lease_ms


class HeldLease:
    """The state of the lease at its holder."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self.record: LeaseRecord | None = None
        self.until_ms: int | None = None
        """Until then the holder may acknowledge, by its steady clock; None while it does not hold the lease."""
        self._number = 0
        self._asked_at = 0

    def ask(self, record: LeaseRecord, now_ms: int) -> None:
        """Notes an attempt to create a record.

        Of several attempts for one number the first one counts: it may have succeeded without an answer, and others may
        have seen the record since.
        """
        if record.number != self._number:
            self._number, self._asked_at = record.number, now_ms

    def confirm(self, record: LeaseRecord) -> None:
        """Notes that the created record is the newest one."""
        self.record = record
        self.until_ms = self._asked_at + self._lease_ms - margin_ms(self._lease_ms)

    def lose(self) -> None:
        """Notes that another server has created a newer record."""
        self.until_ms = None

    def is_valid(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms < self.until_ms
