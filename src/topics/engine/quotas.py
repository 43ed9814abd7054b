"""Quotas: the topics, routers and bytes that the prefixes of one key may use (tenant limits).

Bytes are counted by topic name and not by writer, so copies of routers, dead letters and commits of transactions count
at their destination. Keys with the same prefixes are one tenant. A key without prefixes is bounded by the limits of the
server.

The live bytes of a tenant are recounted when it seems to be at its limit, and not again for a while, so that repeated
refusals cost little. Memory is counted continuously (`KeptMemory`).

Sorted topic names and totals, for a million topics.

A sorted list in parts of bounded length: a change moves one part. One plain list would be moved by half its length for
every name that comes or goes, which at a million names costs more than all the rest of creating a topic.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from topics.engine.topic import Topic
from topics.model.errors import RecordTooLargeError, ThrottledError, TopicFullError, TopicsError
from topics.model.limits import Limits
from topics.model.records import ROW_BYTES
from topics.model.topic_config import Durability, TopicConfig, TopicType
from topics.queues.leases import InFlight

if TYPE_CHECKING:
    from topics.engine.core import EngineCore

_LAST = 0x10FFFF


class SortedNames(Collection[str]):
    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = SortedList(names)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._names

    def add(self, name: str) -> None:
        """Adds a new name."""
        self._names.add(name)

    def discard(self, name: str) -> None:
        """Removes a name, if it exists."""
        self._names.discard(name)

    def count(self, prefix: str) -> int:
        """Returns the number of names with a prefix."""
        if not prefix:
            return len(self._names)
        # The first text after all names with the prefix; after the last character of Unicode there is none.
        last = ord(prefix[-1])
        end = len(self._names) if last == _LAST else self._names.bisect_left(prefix[:-1] + chr(last + 1))
        found: int = end - self._names.bisect_left(prefix)
        return found

    def at(self, place: int) -> Iterator[str]:
        """Yields the names from an index on, counted from 0."""
        found: Iterator[str] = self._names.islice(place)
        return found

    def from_(self, name: str) -> Iterator[str]:
        """Yields the names from this one on; it need not exist."""
        found: Iterator[str] = self._names.irange(name)
        return found

    def behind(self, name: str) -> Iterator[str]:
        """Yields the names after this one; it need not exist."""
        found: Iterator[str] = self._names.irange(name, inclusive=(False, True))
        return found


# Totals over all topics, updated on every change, so that reading them costs the same with a million topics.
#
# Gauges are scraped every few seconds. Adding them up over all topics would block the event loop each time. So every
# creation, deletion or change of a topic is also reported here, and each change of a topic's number of live records
# adds the same difference to the sum: once for a batch, never for a record.
#
# Recovery puts topics together in its own ways and counts once, at its end.


class Totals:
    __slots__ = (
        "appended", "appended_bytes", "by_class", "consumers_given_up", "dead_letter_topics", "dead_letters_refused",
        "in_flight", "queues", "reads", "records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.by_class = dict.fromkeys(Durability, 0)
        """Topics of each class."""
        self.queues = 0
        """Topics that are queues."""
        self.records = 0
        """The number of live records; every change of `Topic.live_count` changes it by the same amount."""
        self.appended = 0
        """Records published since the process started, and their payload; updated once for each batch."""
        self.appended_bytes = 0
        self.reads = 0
        """Reads since this process started; a read shared by several followers counts once."""
        self.dead_letters_refused = 0
        """Jobs that could not be moved to their dead letter topic, since this process started; each attempt counts."""
        self.consumers_given_up = 0
        """The number of times that a topic evicted records that its slowest consumer had not committed, since this
        process started."""
        self.dead_letter_topics: Counter[str] = Counter()
        """The names of dead-letter topics, with how many queues have each."""
        self.in_flight = InFlight()
        """The number of jobs leased to workers, maintained by the lease tables."""

    def topic_added(self, topic: Topic) -> None:
        self._count(topic.config, 1)
        self.records += topic.live_count

    def topic_removed(self, topic: Topic) -> None:
        self._count(topic.config, -1)
        self.records -= topic.live_count

    def reconfigured(self, before: TopicConfig, after: TopicConfig) -> None:
        self._count(before, -1)
        self._count(after, 1)

    def begin(self, topics: Collection[Topic]) -> None:
        """Counts all given topics anew."""
        configs = [topic.config for topic in topics]
        classes = [config.durability for config in configs]
        # Counting by lists is several times as fast as a loop, and a start may have a million topics.
        self.by_class = {durability: classes.count(durability) for durability in Durability}
        self.queues = [config.type for config in configs].count(TopicType.QUEUE)
        self.dead_letter_topics = Counter([config.dead_letter for config in configs if config.dead_letter is not None])
        self.records = sum([topic.live_count for topic in topics])
        self.appended = self.appended_bytes = 0

    def add(self, by_class: Mapping[Durability, int], records: int) -> None:
        """Adds topics, none of them a queue, that were counted elsewhere."""
        for durability, count in by_class.items():
            self.by_class[durability] += count
        self.records += records

    def _count(self, config: TopicConfig, change: int) -> None:
        self.by_class[config.durability] += change
        if config.type is TopicType.QUEUE:
            self.queues += change
            if config.dead_letter is not None:
                self._count_dead_letters(config.dead_letter, change)

    def _count_dead_letters(self, name: str, change: int) -> None:
        self.dead_letter_topics[name] += change
        if not self.dead_letter_topics[name]:
            del self.dead_letter_topics[name]


_RECOUNT_MS = 100
_COUNTED_TOPICS_MS = 100
"""Bytes are counted again after a tenth of a second, or a millisecond for each hundred topics if that is longer."""


class Tenant:
    """Names with a common prefix."""

    __slots__ = ("counted_at", "kept_bytes", "prefixes", "topics", "used_bytes")

    def __init__(self, prefixes: Iterable[str]) -> None:
        given = sorted(set(prefixes))
        self.prefixes = tuple(
            one for one in given if not any(one != other and one.startswith(other) for other in given)
        )
        """None is a prefix of another, so nothing is counted twice."""
        self.used_bytes = 0
        """An upper bound: the last count plus all admissions since."""
        self.topics = 0
        self.counted_at: int | None = None
        self.kept_bytes = 0
        """Memory that its topics keep (`KeptMemory`)."""


class Quotas:
    def __init__(self, core: "EngineCore", limits: Limits) -> None:
        self._core = core
        self._limits = limits
        self._tenants: list[Tenant] = []

    def set_tenants(self, prefixes: Iterable[Iterable[str]]) -> None:
        """Sets the prefixes of all keys. Existing counts are dropped."""
        distinct = {tenant.prefixes: tenant for tenant in map(Tenant, prefixes) if tenant.prefixes}
        self._tenants = list(distinct.values())
        limits = self._limits
        self._core.metered = bool(limits.max_total_bytes or (limits.max_bytes_per_key and self._tenants))
        self._core.memory.set_tenants(self._tenants)

    def check_topics(self, *names: str) -> None:
        """Raises ThrottledError unless topics of these names may be created."""
        most = self._limits.max_topics_per_key
        for tenant in self._tenants if most else ():
            new = sum(name.startswith(tenant.prefixes) for name in names)
            if new and self._count_topics(tenant) + new > most:
                raise ThrottledError.over_cap("max_topics_per_key", most)

    def check_router(self, name: str, routers: Iterable[str]) -> None:
        """Raises ThrottledError unless another router of this name may be created."""
        most = self._limits.max_routers_per_key
        for tenant in self._tenants if most else ():
            if name.startswith(tenant.prefixes) and sum(one.startswith(tenant.prefixes) for one in routers) >= most:
                raise ThrottledError.over_cap("max_routers_per_key", most)

    def tenants_of(self, name: str) -> list[Tenant]:
        """Returns the tenants with a prefix of this name."""
        return [tenant for tenant in self._tenants if name.startswith(tenant.prefixes)]

    def check_bytes(self, name: str, size: int) -> None:
        """Raises ThrottledError unless this many bytes may be added to a topic; otherwise counts them."""
        most = self._limits.max_bytes_per_key
        if not most or not self._tenants:
            return
        concerned = [tenant for tenant in self._tenants if name.startswith(tenant.prefixes)]
        for tenant in concerned:
            if self._room(tenant, most) < size:
                raise ThrottledError.over_cap("max_bytes_per_key", most)
        for tenant in concerned:
            tenant.used_bytes += size

    def room(self, name: str) -> int | None:
        """Returns the number of bytes that may be added to a topic; None if unlimited."""
        most = self._limits.max_bytes_per_key
        rooms = [self._room(tenant, most, 1) for tenant in self._tenants if most and name.startswith(tenant.prefixes)]
        return min(rooms, default=None)

    def over_bytes(self) -> ThrottledError:
        return ThrottledError.over_cap("max_bytes_per_key", self._limits.max_bytes_per_key)

    def _room(self, tenant: Tenant, most: int, requested: int = 0) -> int:
        """Returns the remaining quota of a tenant, recounted if that could change the decision."""
        now = self._core.steady()
        known = tenant.counted_at
        wait_ms = max(_RECOUNT_MS, tenant.topics // _COUNTED_TOPICS_MS)
        # Half of the quota is far enough from the limit for a count that only grows.
        if known is None or (tenant.used_bytes + requested > most // 2 and now - known >= wait_ms):
            topics = [self._core.pager.peek(name) for name in self._names(tenant)]
            tenant.topics = len(topics)
            tenant.used_bytes = sum([topic.live_bytes + topic.staged_bytes for topic in topics])
            tenant.counted_at = now
        return most - tenant.used_bytes

    def _names(self, tenant: Tenant) -> Iterable[str]:
        for prefix in tenant.prefixes:
            yield from self._core.names_from(prefix, "")

    def _count_topics(self, tenant: Tenant) -> int:
        core = self._core
        there = sum(core.names.count(prefix) for prefix in tenant.prefixes)
        # Includes topics being created, which are among the newest names.
        coming, found = core.coming_count, 0
        for topic in reversed(core.directory.resident.values()) if coming else ():
            if not coming:
                break
            if not topic.created:
                coming -= 1
                found += topic.name.startswith(tenant.prefixes)
        return there + found


# Memory that topics keep beyond the log and the tails, which have separate bounds.
#
# | kept | by |
# |---|---|
# | records of ephemeral topics | `engine.topic.Block` |
# | idempotency keys within their window | `engine.idempotency.KeyMemory` |
# | producers, and schemas with their lenses | `streams.stream_state.StreamState` |
# | jobs with a history: leased, delayed, returned | `queues.leases.LeaseTable` |
#
# `KeptMemory` counts it by topic, by tenant and in total after each change, so that a decision costs a comparison.
# Writes that would exceed a budget are refused; nothing is evicted, because all of it was acknowledged.

_BLOCK_BYTES = 450
"""A block in memory besides its records: the object, its numbers, and the heads of two byte strings."""
KEY_BYTES = 1_000
"""The assumed memory of an idempotency key, before its length is known."""
_TIGHT_SHARE = 8
"""Within the last eighth of a budget every write is checked separately."""


class KeptMemory:
    def __init__(self, limits: Limits) -> None:
        self._most, self._most_per_key = limits.max_memory_bytes, limits.max_memory_bytes_per_key
        self._tenants: list[Tenant] = []
        self._owners: dict[int, tuple[Tenant, ...]] = {}
        """The tenants of each topic that keeps memory, by its id."""
        self._topics: dict[int, Topic] = {}
        self.total_bytes = 0
        self.pressed = False
        """Whether any budget is nearly exhausted."""

    def set_tenants(self, tenants: Sequence[Tenant]) -> None:
        self._tenants = list(tenants)
        topics, self._topics, self._owners, self.total_bytes = self._topics, {}, {}, 0
        for topic in topics.values():
            topic.kept_bytes = 0
            self.note(topic)
        self._look()

    def note(self, topic: Topic) -> None:
        """Updates the memory of a topic. Called after each of its changes."""
        if topic.closing:
            self.forget(topic)
            return
        kept = kept_bytes(topic)
        grown = kept - topic.kept_bytes
        if not grown:
            return
        topic.kept_bytes = kept
        if topic.id not in self._owners:
            self._topics[topic.id] = topic
            name = topic.name
            self._owners[topic.id] = tuple([one for one in self._tenants if name.startswith(one.prefixes)])
        self._add(topic, grown)
        if not kept:
            del self._owners[topic.id], self._topics[topic.id]

    def forget(self, topic: Topic) -> None:
        """Removes a topic that is no longer in memory."""
        if topic.kept_bytes:
            self._add(topic, -topic.kept_bytes)
            topic.kept_bytes = 0
            del self._owners[topic.id], self._topics[topic.id]

    def _add(self, topic: Topic, size: int) -> None:
        self.total_bytes += size
        for tenant in self._owners[topic.id]:
            tenant.kept_bytes += size
        if self.pressed or self._is_tight(topic):
            self._look()

    def _look(self) -> None:
        self.pressed = _is_tight(self.total_bytes, self._most) or any(
            [_is_tight(tenant.kept_bytes, self._most_per_key) for tenant in self._tenants]
        )

    def is_tight(self, topic: Topic) -> bool:
        """Returns whether writes to a topic must be checked one by one."""
        return self.pressed and self._is_tight(topic)

    def _is_tight(self, topic: Topic) -> bool:
        return _is_tight(self.total_bytes, self._most) or any(
            [_is_tight(tenant.kept_bytes, self._most_per_key) for tenant in self._tenants_of(topic)]
        )

    def check(self, topic: Topic, size: int) -> None:
        """Raises ThrottledError unless a topic may keep this many more bytes."""
        if not self.pressed or self.room(topic) >= size:
            return
        # Records may have expired since the last count.
        self.note(topic)
        if self._most and self.total_bytes + size > self._most:
            raise ThrottledError.over_cap("max_memory_bytes", self._most)
        if self.room(topic) < size:
            raise ThrottledError.over_cap("max_memory_bytes_per_key", self._most_per_key)

    def room(self, topic: Topic) -> float:
        """Returns the number of bytes that a topic may keep in addition."""
        rooms = [self._most - self.total_bytes if self._most else float("inf")]
        if self._most_per_key:
            rooms += [self._most_per_key - tenant.kept_bytes for tenant in self._tenants_of(topic)]
        return min(rooms)

    def _tenants_of(self, topic: Topic) -> Sequence[Tenant]:
        known = self._owners.get(topic.id)
        return [one for one in self._tenants if topic.name.startswith(one.prefixes)] if known is None else known


def _is_tight(used: int, most: int) -> bool:
    return bool(most) and used > most - most // _TIGHT_SHARE


def kept_bytes(topic: Topic) -> int:
    """Returns the memory that a topic keeps, estimated from counts."""
    kept = topic.keys.memory_bytes if topic.keys is not None else 0
    if not topic.config.durability.logged:
        kept += topic.tail_bytes + _BLOCK_BYTES * len(topic.tail)
    if topic.parts is not None:
        kept += sum([getattr(part, "memory_bytes", 0) for part in topic.parts.values()])
    return kept


def memory_of(records: int, size: int) -> int:
    """Returns the memory that records would take as one block."""
    return _BLOCK_BYTES + size + 3 * ROW_BYTES * records


def fits_into(quotas: Quotas, topic: Topic, sizes: Iterable[int]) -> int:
    """Returns how many of the first records fit into the remaining quota of a topic's tenants, and counts these."""
    room = quotas.room(topic.name)
    if room is None:
        return len(list(sizes))
    taken = used = 0
    for size in sizes:
        if used + size > room:
            break
        used += size
        taken += 1
    quotas.check_bytes(topic.name, used)
    return taken


# Room checks: for a batch, which is accepted whole or refused, and for copies, of which as many are accepted as fit.
#
# Appends in flight count, so that two writers cannot both get the last place.


def check_room(topic: Topic, count: int, size: int, quota: int, used: int) -> None:
    """Refuses records that do not fit into a topic that rejects, or into the server's quota (0: unlimited)."""
    if topic.rules.rejects:
        config = topic.staged_config
        if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
            raise RecordTooLargeError(
                "the batch alone is larger than the topic's cap",
                topic=topic.name, cap_records=config.cap_records, cap_bytes=config.cap_bytes,
            )  # fmt: skip
        records, room = _room(topic)
        if count > records or size > room:
            raise _full(topic)
    if quota and used + size > quota:
        raise over_quota(quota)


def records_that_fit(topic: Topic, sizes: Sequence[int], quota: int, used: int) -> tuple[int, TopicsError | None]:
    """Returns the number of first records that fit, and the error for the others."""
    count, room = len(sizes), float("inf")
    reason: TopicsError | None = None
    if topic.rules.rejects:
        records, room = _room(topic)
        count = max(int(min(count, records)), 0)
        reason = _full(topic)
    if quota and quota - used < room:
        room = quota - used
        reason = over_quota(quota) if count else reason
    taken = 0
    for size in sizes[:count]:
        if size > room:
            break
        room -= size
        taken += 1
    return taken, None if taken == len(sizes) else reason


def over_quota(quota: int) -> ThrottledError:
    return ThrottledError.over_cap("max_total_bytes", quota)


def _room(topic: Topic) -> tuple[float, float]:
    """Returns the remaining records and bytes of a topic that rejects."""
    config, unbounded = topic.staged_config, float("inf")
    records = config.cap_records - topic.live_count - topic.staged_count if config.cap_records else unbounded
    size = config.cap_bytes - topic.live_bytes - topic.staged_bytes if config.cap_bytes else unbounded
    return records, size


def _full(topic: Topic) -> TopicFullError:
    config = topic.staged_config
    return TopicFullError(
        topic.name,
        cap_records=config.cap_records,
        cap_bytes=config.cap_bytes,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
    )
