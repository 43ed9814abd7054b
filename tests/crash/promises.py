"""The promises about the state after a crash, one function for each.

A promise receives the timelines and the state that was found, and yields a message for each contradiction. The
functions look at the same evidence from different sides and know nothing of each other, so a mistake in one of them
does not hide what another one sees.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.crash.harness import Append, Create, Dump, Timeline, TopicDump, World
from tests.crash.model import Kept, Model
from topics.model.topic_config import Durability
from topics.model.topic_epochs import epoch_at
from topics.testing import ManualClock


@dataclass
class Evidence:
    """A crash and the state found after it."""

    world: World
    """With the timelines as they were when the engine stopped."""
    found: Dump
    interrupted: bool = False
    """Whether the engine was only starting when it stopped."""

    def __post_init__(self) -> None:
        self.power = self.world.lost_power
        """Whether the machine went down, and not only the process."""
        now = self.world.clock.now_ms()
        self.possible: dict[str, list[Model | None]] = {}
        """The possible states of each name: the state after the promised operations, and after each later one."""
        self.everything: dict[str, list[Model | None]] = {}
        """The states before them as well."""
        for name, timeline in self.world.timelines.items():
            states = [None if state is None else state.copy() for state in timeline.states()]
            for state in states:
                if state is not None:
                    state.expire(now)
            self.everything[name] = states
            self.possible[name] = states[timeline.promised(self.power) :]

    def existing(self) -> Iterator[tuple[str, TopicDump, Timeline]]:
        for name, topic in self.found.items():
            if name in self.world.timelines:
                yield name, topic, self.world.timelines[name]


def control_changes_are_there(evidence: Evidence) -> Iterator[str]:
    """A topic whose creation was acknowledged exists, one whose deletion was does not, and a config is the last one."""
    for name in evidence.found:
        if name not in evidence.world.timelines:
            yield f"{name} exists and was never asked for"
    for name, states in evidence.possible.items():
        topic = evidence.found.get(name)
        if topic is None:
            if None not in states:
                yield f"{name} is gone"
        elif all(state is None for state in states):
            yield f"{name} is back with {sorted(topic.live)}"
        elif all(state is None or state.config != topic.config for state in states):
            yield f"{name} has the config {topic.config}"
        elif topic.epoch not in _epochs(evidence.world.timelines[name], evidence.power):
            yield f"{name} is of epoch {topic.epoch}, of another topic of that name"


def acknowledged_records_are_there(evidence: Evidence) -> Iterator[str]:
    """A record that is live whichever of the promised and later operations made it to the disk is live."""
    for name, topic, _ in evidence.existing():
        states = evidence.possible[name]
        for seq, kept in _in_every(states).items():
            if kept.logged and topic.live.get(seq) is None:
                yield f"{name}: record {seq} ({kept.value}) is missing"


def nothing_unwritten_appears(evidence: Evidence) -> Iterator[str]:
    """Everything that is found was appended, under that seq, with that content."""
    for name, topic, _ in evidence.existing():
        for seq, kept in topic.live.items():
            known = [state.live[seq] for state in evidence.everything[name] if state is not None and seq in state.live]
            if not any(_alike(kept, other) for other in known):
                yield f"{name}: record {seq} is {kept}, which nobody wrote; known are {known}"


def removed_stays_removed(evidence: Evidence) -> Iterator[str]:
    """A record that is gone whichever of the promised and later operations survived does not come back."""
    for name, topic, _ in evidence.existing():
        states = [state for state in evidence.possible[name] if state is not None]
        possible = {seq for state in states for seq in (*state.live, *state.returning)}
        if back := sorted(set(topic.live) - possible):
            yield f"{name}: records {back} are back"


def loss_is_told(evidence: Evidence) -> Iterator[str]:
    """An acknowledged record that was not removed and that is not there lies in a range that a reader receives as lost.

    Class memory is left out after a power cut: it promises nothing. Records that are present are not reported as lost.
    """
    for name, topic, timeline in evidence.existing():
        reported = {seq for first, last, _ in topic.reported for seq in range(first, last + 1)}
        if lies := sorted(reported & set(topic.live)):
            yield f"{name}: {lies} are there and told to be lost"
        states = evidence.everything[name]
        for place, operation in enumerate(timeline.operations):
            after = states[place + 1]
            if not isinstance(operation, Append) or not operation.acked or operation.epoch != topic.epoch:
                continue
            assert after is not None
            if after.config.durability is Durability.MEMORY and evidence.power:
                continue
            # When a head falls back, as class ephemeral allows, clients that were further on already are notified.
            silent = _in_every(states[place + 1 :]).keys() - topic.live.keys() - reported
            if silent := {seq for seq in silent if seq <= topic.head}:
                yield f"{name}: records {sorted(silent)} are lost and nobody is told; told are {topic.reported}"


def floors_do_not_move_back(evidence: Evidence) -> Iterator[str]:
    for name, topic, _ in evidence.existing():
        states = evidence.possible[name]
        for floor in ("evict_floor", "cap_floor", "ttl_floor"):
            # The lowest of all, because a later operation may have taken the time limit away before time was up.
            lowest = min(1 if state is None or state.volatile else getattr(state, floor) for state in states)
            if getattr(topic, floor) < lowest:
                yield f"{name}: {floor} fell from {lowest} to {getattr(topic, floor)}"


def the_state_is_that_of_one_moment(evidence: Evidence) -> Iterator[str]:
    """A topic is found exactly as some prefix of its operations left it, a prefix with all promised operations."""
    for name, states in evidence.possible.items():
        found = evidence.found.get(name)
        if found is None:
            continue
        differences = [list(_differences(state, found, evidence)) for state in states if state is not None]
        if differences and all(differences):
            yield f"{name}: like no moment since the last promise; unlike the last one in {differences[-1]}"


def the_books_are_right(evidence: Evidence) -> Iterator[str]:
    """Counts and bounds agree with the records that can be read."""
    for name, topic in evidence.found.items():
        size = sum(kept.size for kept in topic.live.values())
        said = (topic.record_count, topic.record_bytes)
        if said != (len(topic.live), size):
            yield f"{name}: says it has {said[0]} records of {said[1]} bytes, has {len(topic.live)} of {size}"
        if topic.earliest != min(topic.live, default=topic.head + 1):
            yield f"{name}: says it begins at {topic.earliest}, has {sorted(topic.live)} and the head {topic.head}"
        if max(topic.live, default=0) > topic.head:
            yield f"{name}: has {max(topic.live)} above its head {topic.head}"
        ranges = sorted(topic.lost)
        if any(first <= before for (_, before, _), (first, _, _) in pairwise(ranges)):
            yield f"{name}: remembers a loss twice: {topic.lost}"


PROMISES: list[Callable[[Evidence], Iterator[str]]] = [
    control_changes_are_there,
    acknowledged_records_are_there,
    nothing_unwritten_appears,
    removed_stays_removed,
    loss_is_told,
    floors_do_not_move_back,
    the_state_is_that_of_one_moment,
    the_books_are_right,
]


def unlike_what_was_acknowledged(world: World, found: Dump) -> Iterator[str]:
    """A running engine shows exactly the acknowledged operations, after any failure."""
    for name in found.keys() - world.timelines.keys():
        yield f"{name} exists and was never asked for"
    for name, timeline in world.timelines.items():
        state, topic = timeline.acked_state(), found.get(name)
        if state is None or topic is None:
            if state is not None or topic is not None:
                yield f"{name} is {'missing' if topic is None else 'there'}"
            continue
        state.expire(world.clock.now_ms())
        seen = (topic.config, topic.head, topic.evict_floor, topic.cap_floor, topic.ttl_floor, topic.keys)
        keys = state.fresh_keys(world.clock.now_ms())
        expected = (state.config, state.head, state.evict_floor, state.cap_floor, state.ttl_floor, keys)
        if seen != expected:
            yield f"{name} shows {seen}, not {expected}"
        if topic.consumers != state.consumers:
            yield f"{name} shows the consumers {topic.consumers}, not {state.consumers}"
        if topic.fence != state.fence:
            yield f"{name} shows the fence {topic.fence!r}, not {state.fence!r}"
        if topic.live.keys() != state.live.keys():
            yield f"{name} shows {sorted(topic.live)}, not {sorted(state.live)}"
        elif not all(_alike(topic.live[seq], kept) for seq, kept in state.live.items()):
            yield f"{name} shows other contents than were written"


def broken_promises(evidence: Evidence) -> list[str]:
    return [f"{promise.__name__}: {text}" for promise in PROMISES for text in promise(evidence)]


def _differences(state: Model, found: TopicDump, evidence: Evidence) -> Iterator[str]:
    """Lists the differences between a topic and a state, apart from changes that a crash may make."""
    if found.config != state.config:
        yield "config"
    logged = {seq for seq, kept in state.live.items() if kept.logged}
    if not logged <= found.live.keys() <= state.live.keys() | state.returning:
        yield f"records: {sorted(found.live)}, not {sorted(state.live)}"
    if not all(_alike(kept, state.live.get(seq, kept)) for seq, kept in found.live.items()):
        yield "contents"
    if state.volatile:
        return
    if found.consumers != state.consumers:
        yield f"consumers: {found.consumers}, not {state.consumers}"
    if found.fence != state.fence:
        yield f"fence: {found.fence!r}, not {state.fence!r}"
    for floor in ("evict_floor", "cap_floor", "ttl_floor"):
        if getattr(found, floor) != getattr(state, floor):
            yield f"{floor}: {getattr(found, floor)}, not {getattr(state, floor)}"
    now = evidence.world.clock.now_ms()
    if found.keys != state.fresh_keys(now):
        yield f"keys: {found.keys}, not {state.fresh_keys(now)}"
    reserved = range(state.head + 1, found.head + 1) if state.config.durability.reserves_seqs else range(0)
    if found.head != state.head + len(reserved):
        yield f"head: {found.head}, not {state.head}"
    lost = state.lost | (set(reserved) if evidence.power else set())
    # A start that was cut short after a kill may have found everything, and have written down that nothing is lost.
    allowed = [lost, state.lost] if evidence.interrupted else [lost]
    if evidence.world.call_failed:
        # A failed write or sync may have cost pages, so the next start reports possible losses of class disk.
        allowed.append(state.lost | set(reserved))
    if found.lost_seqs not in [{seq for seq in lost if seq >= found.evict_floor} for lost in allowed]:
        yield f"lost: {found.lost}, not {sorted(lost)}"


def _epochs(timeline: Timeline, power: bool) -> set[int]:
    """The epochs a topic may have: that of the promised state, and that of any creation behind it."""
    promised = timeline.operations[: timeline.promised(power)]
    known = {next((op.epoch for op in reversed(promised)), timeline.base_epoch)}
    for operation in timeline.operations[len(promised) :]:
        if isinstance(operation, Create):
            lowest = max(max(known) + 1, epoch_at(ManualClock().now_ms()))
            return known | set(range(lowest, lowest + 100))
    return known


def _alike(one: Kept, other: Kept) -> bool:
    return (one.value, one.tag, one.ts) == (other.value, other.tag, other.ts)


def _in_every(states: list[Model | None]) -> dict[int, Kept]:
    """The records that are live in all of the states."""
    kept: dict[int, Kept] = {}
    for place, state in enumerate(states):
        live = {} if state is None else state.live
        kept = (
            dict(live)
            if place == 0
            else {seq: record for seq, record in kept.items() if seq in live and _alike(record, live[seq])}
        )
    return kept
