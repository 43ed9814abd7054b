"""Model check of the lease and of takeovers: every state that two servers and one store can reach, up to a bound.

Two searches. The first runs the product's own `LeaseWatch` and `HeldLease` against a store whose requests may be late,
lost after they took effect, or both, on clocks of which one runs ahead: at no time may two servers acknowledge. The
second leaves time out, so that any server may take the lease at any moment, as if every clock were wrong: class
`remote` loses nothing all the same, because backups are announced and log is fenced. Each guard is removed once, and
then the search has to find the state that it prevents.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import msgspec
import pytest

from topics.ops.failover import lease
from topics.ops.failover.lease import HeldLease, Identity, LeaseRecord, LeaseWatch, renewed, taken

State = TypeVar("State")


def search(first: State, steps: Callable[[State], Iterator[State]], wrong: Callable[[State], bool]) -> int | None:
    """The number of states that can be reached; None if a wrong one can."""
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        if wrong(state):
            return None
        for following in steps(state):
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return len(seen)


# The lease, with time.

LEASE_MS = 3
UNTIL = 4
NUMBERS_MAX = 4
FAULTS_MAX = 1
"""Requests that are given up, and answers that are lost."""
WHO = [Identity(f"folder-{n}", f"process-{n}", "", LEASE_MS) for n in range(2)]

Mark = tuple[int, int, int]
"""A record: its number, its term and the server that made it. Hashed a million times, so it is no `LeaseRecord`."""


@functools.cache
def record_of(mark: Mark) -> LeaseRecord:
    number, term, place = mark
    first = taken(None, WHO[place])
    return msgspec.structs.replace(first, number=number, term=term)


def mark_of(record: LeaseRecord) -> Mark:
    return record.number, record.term, [who.writer for who in WHO].index(record.writer)


class Request(NamedTuple):
    """A conditional put that is on its way, and its answer once it has taken effect."""

    mark: Mark
    made: bool | None = None


class Holder(NamedTuple):
    """A server as the protocol sees it: the fields of `HeldLease`."""

    record: Mark | None = None
    until_ms: int | None = None
    number: int = 0
    asked_at: int = 0
    request: Request | None = None
    late: Request | None = None
    """A request that the server has given up waiting for."""

    def hold(self) -> HeldLease:
        hold = HeldLease(LEASE_MS)
        hold.record = None if self.record is None else record_of(self.record)
        hold.until_ms, hold._number, hold._asked_at = self.until_ms, self.number, self.asked_at
        return hold

    def keep(self, hold: HeldLease, request: Request | None) -> "Holder":
        record = None if hold.record is None else mark_of(hold.record)
        return Holder(record, hold.until_ms, hold._number, hold._asked_at, request, self.late)

    def ask(self, mark: Mark, now: int, guards: "Guards") -> "Holder":
        hold = self.hold()
        if not guards.first_attempt:
            hold._number = 0
        hold.ask(record_of(mark), now)
        return self.keep(hold, Request(mark))

    def hear(self) -> "Holder":
        """The answer to its request comes in."""
        assert self.request is not None
        hold = self.hold()
        if self.request.made:
            hold.confirm(record_of(self.request.mark))
        else:
            hold.lose()
        return self.keep(hold, None)


class Timed(NamedTuple):
    """The first server holds the lease, and the second one wants it."""

    now: int
    ahead: bool
    """Whether the clock of the second server has gained one tick."""
    marks: tuple[Mark, ...]
    """The records by number; all but the newest may be removed at any time."""
    primary: Holder
    other: Holder
    watched: tuple[Mark | None, int]
    """The newest record that the second server saw, and when."""
    faults: int = 0


@dataclass(frozen=True)
class Guards:
    """The rules of the lease; a test takes one away."""

    conditional: bool = True
    newest_again: bool = True
    first_attempt: bool = True


def effect(marks: tuple[Mark, ...], mark: Mark, guards: Guards) -> tuple[tuple[Mark, ...], bool]:
    """The store carries a put out, and the server looks whether its record is the newest."""
    same = [known for known in marks if known[0] == mark[0]]
    if not (same and guards.conditional):
        marks = tuple(sorted([*(known for known in marks if known[0] != mark[0]), mark]))
    # A record of the same writer is an earlier attempt of it.
    return marks, mark in marks and (marks[-1] == mark or not guards.newest_again)


def requests(state: Timed, server: Holder, guards: Guards) -> Iterator[tuple[Timed, Holder]]:
    """The possible outcomes of the requests of a server."""
    request, late = server.request, server.late
    faulty = state._replace(faults=state.faults + 1)
    if late is not None:
        yield state._replace(marks=effect(state.marks, late.mark, guards)[0]), server._replace(late=None)
    if request is None:
        return
    if request.made is None:
        marks, made = effect(state.marks, request.mark, guards)
        yield state._replace(marks=marks), server._replace(request=Request(request.mark, made))
        if late is None and state.faults < FAULTS_MAX:
            yield faulty, server._replace(request=None, late=request)
    else:
        yield state, server.hear()
        if state.faults < FAULTS_MAX:
            yield faulty, server._replace(request=None)


def timed_steps(guards: Guards) -> Callable[[Timed], Iterator[Timed]]:
    def renewals(state: Timed, server: Holder, now: int) -> Iterator[Holder]:
        held = server.record is not None and server.until_ms is not None and server.request is None
        if held and server.record is not None and server.record[0] < NUMBERS_MAX:
            yield server.ask(mark_of(renewed(record_of(server.record))), now, guards)

    def steps(state: Timed) -> Iterator[Timed]:
        now, later = state.now, state.now + state.ahead
        if now < UNTIL:
            yield state._replace(now=now + 1)
        if not state.ahead:
            yield state._replace(ahead=True)
        if len(state.marks) > 1:
            yield state._replace(marks=state.marks[1:])
        for reached, server in requests(state, state.primary, guards):
            yield reached._replace(primary=server)
        for reached, server in requests(state, state.other, guards):
            yield reached._replace(other=server)
        for server in renewals(state, state.primary, now):
            yield state._replace(primary=server)
        for server in renewals(state, state.other, later):
            yield state._replace(other=server)
        if state.other.record is None and state.other.request is None:
            watch, newest = LeaseWatch(), record_of(state.marks[-1])
            seen, watch._seen_at = state.watched
            watch.newest = None if seen is None else record_of(seen)
            watch.see(newest, later)
            looked = state._replace(watched=(mark_of(newest), watch._seen_at))
            if looked.watched != state.watched:
                yield looked
            elif watch.is_over(later) and newest.number < NUMBERS_MAX:
                yield state._replace(other=state.other.ask(mark_of(taken(newest, WHO[1])), later, guards))

    return steps


def first_state() -> Timed:
    hold, record = HeldLease(LEASE_MS), taken(None, WHO[0])
    hold.ask(record, 0)
    hold.confirm(record)
    return Timed(0, False, (mark_of(record),), Holder().keep(hold, None), Holder(), (None, 0))


def both_acknowledge(state: Timed) -> bool:
    now, later = state.now, state.now + state.ahead
    return state.primary.hold().is_valid(now) and state.other.hold().is_valid(later)


def test_no_reachable_state_has_two_servers_with_a_valid_lease() -> None:
    states = search(first_state(), timed_steps(Guards()), both_acknowledge)
    assert states is not None
    assert states > 10_000


@pytest.mark.parametrize("guard", ["conditional", "newest_again", "first_attempt"])
def test_without_a_guard_of_the_lease_two_servers_acknowledge(guard: str) -> None:
    assert search(first_state(), timed_steps(replace(Guards(), **{guard: False})), both_acknowledge) is None


def test_without_the_margin_a_clock_that_runs_ahead_lets_two_servers_acknowledge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "margin_ms", lambda lease_ms: 0)
    assert search(first_state(), timed_steps(Guards()), both_acknowledge) is None


# The takeover, without time: any server may take the lease at any moment.

WRITES = 3
SLOTS = 4
FENCE = -1


class Primary(NamedTuple):
    """The first primary: it logs writes, ships them in objects, and takes one backup meanwhile."""

    logged: int = 0
    cut: int = 0
    """Writes below this are in an object or in an announced backup."""
    objects: tuple[tuple[int, int], ...] = ()
    """The writes of each object, by slot: first and last + 1."""
    flying: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    fenced: bool = False
    backup: tuple[int, int, str] | None = None
    """Writes and first slot of the backup that it takes, and how far that is."""


class Successor(NamedTuple):
    """A server that takes over."""

    phase: str = "idle"
    lineage: int = 0
    base: tuple[int, int] = (0, 0)
    """Writes and first slot of the backup that it has chosen."""
    target: int = 0
    has: frozenset[int] = frozenset()


class Place(NamedTuple):
    """The whole state: the store, three servers, and the acknowledged writes."""

    lease: int = 0
    """The writer of the newest record."""
    lineage: int = 0
    """The server whose backups it names."""
    slots: tuple[int | None, ...] = (None,) * SLOTS
    """The log of the first primary: the number of an object or a fence."""
    backup: tuple[int, int] = (0, 0)
    """The newest one of the first primary."""
    next_backup: frozenset[int] = frozenset()
    """The one of the second primary."""
    primary: Primary = Primary()
    second: Successor = Successor()
    third: Successor = Successor()
    acked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Rules:
    conditional_log: bool = True
    fence: bool = True
    acked_in_order: bool = True
    announced: bool = True
    backup_chosen_after_lease: bool = True


OWN_WRITE = {1: 100, 2: 200}
"""The writes of a successor."""


def put(slots: tuple[int | None, ...], slot: int, value: int) -> tuple[int | None, ...]:
    return (*slots[:slot], value, *slots[slot + 1 :])


def of_primary(state: Place, rules: Rules) -> Iterator[Place]:
    own = state.primary
    if own.logged < WRITES:
        yield state._replace(primary=own._replace(logged=own.logged + 1))
    if own.cut < own.logged and len(own.objects) < SLOTS - 1 and not own.fenced:
        slot = len(own.objects)
        yield state._replace(
            primary=own._replace(
                cut=own.logged, objects=(*own.objects, (own.cut, own.logged)), flying=own.flying | {slot}
            )
        )
    for slot in own.flying:
        landed = own._replace(flying=own.flying - {slot})
        if state.slots[slot] is None or not rules.conditional_log:
            yield state._replace(
                slots=put(state.slots, slot, slot), primary=landed._replace(stored=own.stored | {slot})
            )
        else:
            yield state._replace(primary=landed._replace(fenced=True))
    whole = own.stored if not rules.acked_in_order else {s for s in own.stored if set(range(s)) <= own.stored}
    acked = state.acked.union(*(range(*own.objects[slot]) for slot in whole))
    if acked != state.acked:
        yield state._replace(acked=acked)
    if own.backup is None:
        yield state._replace(primary=own._replace(backup=(own.logged, len(own.objects), "captured")))
        return
    writes, first, phase = own.backup
    if phase == "captured":
        yield state._replace(backup=(writes, first), primary=own._replace(backup=(writes, first, "published")))
    elif phase == "published" and (state.lease == 0 or not rules.announced):
        done = own._replace(backup=(writes, first, "announced"), cut=max(own.cut, writes))
        # Writes that no pending object contains are acknowledged through the backup.
        covered = range(own.cut, writes)
        yield state._replace(primary=done, acked=state.acked.union(covered))


def of_successor(state: Place, place: int, rules: Rules) -> Iterator[Place]:
    own = state.second if place == 1 else state.third

    def after(reached: Place, **fields: object) -> Place:
        following = own._replace(**fields)  # type: ignore[arg-type]
        return reached._replace(second=following) if place == 1 else reached._replace(third=following)

    if own.phase == "idle":
        if not rules.backup_chosen_after_lease:
            yield after(state, phase="chosen early", base=state.backup, lineage=state.lineage)
        elif state.lease < place:
            yield after(state._replace(lease=place), phase="taken", lineage=state.lineage)
    elif own.phase == "chosen early" and state.lease < place:
        yield after(state._replace(lease=place), phase="chosen")
    elif own.phase == "taken":
        if own.lineage:
            yield after(state, phase="restored", has=state.next_backup)
        else:
            yield after(state, phase="chosen", base=state.backup)
    elif own.phase == "chosen":
        free = next((s for s in range(own.base[1], SLOTS) if state.slots[s] in (None, FENCE)), SLOTS)
        if free < SLOTS:
            yield after(state, phase="fencing", target=free)
    elif own.phase == "fencing":
        slot = own.target
        if state.slots[slot] not in (None, FENCE):
            yield after(state, phase="chosen")
            return
        slots = put(state.slots, slot, FENCE) if rules.fence else state.slots
        objects = [state.primary.objects[s] for s in range(own.base[1], slot)]
        has = frozenset(range(own.base[0])).union(*(range(*writes) for writes in objects))
        yield after(state._replace(slots=slots), phase="restored", has=has)
    elif own.phase == "restored" and place == 1 and (state.lease == 1 or not rules.announced):
        # Its first backup, which it announces before it acknowledges its own write.
        has = own.has | {OWN_WRITE[1]}
        named = state._replace(lineage=1) if state.lease == 1 else state
        yield after(named._replace(next_backup=has, acked=state.acked | {OWN_WRITE[1]}), phase="active", has=has)


def place_steps(rules: Rules) -> Callable[[Place], Iterator[Place]]:
    def steps(state: Place) -> Iterator[Place]:
        yield from of_primary(state, rules)
        for place in (1, 2):
            yield from of_successor(state, place, rules)

    return steps


def acknowledged_and_lost(state: Place) -> bool:
    """Whether the newest server that has restored the state lacks a write that an earlier server acknowledged."""
    newest = state.third if state.third.phase == "restored" else state.second
    return newest.phase in ("restored", "active") and not state.acked <= newest.has


def test_no_takeover_at_any_moment_loses_an_acknowledged_write() -> None:
    states = search(Place(), place_steps(Rules()), acknowledged_and_lost)
    assert states is not None
    assert states > 1_000


@pytest.mark.parametrize(
    "rule", ["conditional_log", "fence", "acked_in_order", "announced", "backup_chosen_after_lease"]
)
def test_without_a_rule_of_the_takeover_an_acknowledged_write_is_lost(rule: str) -> None:
    assert search(Place(), place_steps(replace(Rules(), **{rule: False})), acknowledged_and_lost) is None
