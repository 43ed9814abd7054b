"""A topic's state: plain values that only `engine.apply` and its neighbours change, on the event loop's thread.

Kept small on purpose: a hundred thousand idle topics must fit, so what a quiet topic does not need is None or shared.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from topics.engine.idempotency import KeyMemory
from topics.engine.record_runs import Block, Run, Segment
from topics.model.records import Record
from topics.model.seq_ranges import LostRange
from topics.model.topic_config import Discard, TopicConfig

# Write rules: the effect of a topic's config, guard and lifecycle on writers.
#
# Asked by everyone who writes, of one object a topic has; another takes its place when one of these changes
# (`Topic.rules`). So "is this topic plain?" has one answer, and a shortcut cannot come to another one than the long
# way. Topics for which the same holds share it: most of a hundred thousand do.


class Rules:
    __slots__ = (
        "acks_after_sync", "ceilings", "closing", "created", "guarded", "keyed", "logged", "plain", "rejects",
        "reserves", "shares", "takes_all", "usual", "waits",
    )  # fmt: skip

    def __init__(self, config: TopicConfig, published: bool, created: bool, guarded: bool, closing: bool) -> None:
        """`published` says that readers see this config as well; they do not while it is on its way."""
        durability = config.durability
        self.created = created
        self.guarded = guarded
        self.closing = closing
        self.logged = durability.logged
        self.acks_after_sync = durability.acks_after_sync
        self.reserves = durability.reserves_seqs
        self.ceilings = durability.reserves_seqs or not durability.logged
        """Whether its seqs are shown before the disk knows of them, so that they need a ceiling."""
        self.waits = durability.acks_after_sync or not created
        """Whether everything that is logged for it waits for a sync."""
        self.rejects = config.discard is Discard.REJECT and bool(config.cap_records or config.cap_bytes)
        """Whether it refuses what does not fit, instead of dropping the oldest."""
        self.usual = not guarded and not closing
        """Whether nothing has to be asked before something is done to it: it is there, for everyone. One that was
        deleted stays one that is closing."""
        self.takes_all = not guarded and not self.rejects
        """Whether it takes any records that a server has room for."""
        self.shares = (
            not self.rejects and created and not closing and durability.logged and not config.ttl_ms and published
        )
        """Whether single records may share a block, where a guard has nothing to say about them."""
        self.plain = self.shares and not guarded
        """Whether they may: nothing about the topic looks at each request by itself."""
        self.keyed = self.plain and config.idempotency_window_ms > 0
        """Whether those with an idempotency key may, too: where none is remembered, one may come twice in a block."""


_SHARED_MAX = 4096
_shared: dict[tuple[int, bool, bool, bool, bool], tuple[TopicConfig, Rules]] = {}
"""Rules by the config they are made of, which they keep: so its address is nobody else's. Configs are shared, too."""


def rules_of(config: TopicConfig, published: bool, created: bool, guarded: bool, closing: bool) -> Rules:
    key = (id(config), published, created, guarded, closing)
    found = _shared.get(key)
    if found is None:
        if len(_shared) >= _SHARED_MAX:
            _shared.clear()
        found = _shared[key] = (config, Rules(config, published, created, guarded, closing))
    return found[1]


SEQ_BASE = 1

Records = Callable[[], Sequence[Record]]
"""The records that somebody wants to write. A function, because most guards do not look at them."""


class Guard(Protocol):
    """Has a say in what may be done to a topic that is more than a log."""

    def check_append(self, topic: "Topic") -> None:
        """Raises where the topic takes no records, whichever way they come."""
        ...

    def admit(self, topic: "Topic", records: Records, moved: bool, prepared: Any = None) -> Sequence[Record] | None:
        """The records as they are to be stored, None where that is as they are; raises where one of them is not what
        the topic's are. `moved` says that they were written to another topic first."""
        ...

    def indifferent(self, topic: "Topic", streams: bool) -> bool:
        """Whether it takes any record just now, as it is, and does nothing about it; for users of streams, or for
        those of topics. Asked for each record, so it has to be quick; no is always a right answer."""
        ...

    def rewrites(self, topic: "Topic") -> bool:
        """Whether `admit` may store records otherwise than they came."""
        ...

    def postpones(self, topic: "Topic", records: Sequence[Record], prepared: Any, retry: Callable[[Any], None]) -> bool:
        """Whether the records are looked at in portions before anything is decided, or come behind some that are. Then
        `retry` is called once: with what was made of them, for this and `admit`, or with None when it is their turn."""
        ...

    def hides(self, topic: "Topic") -> bool:
        """Whether users of topics do not find it: it is there for nobody, or its name is none of theirs."""
        ...

    def over(self, topic: "Topic") -> bool:
        """Whether the topic is kept but is there for nobody, not for those who only read either."""
        ...

    def sweep(self, topic: "Topic") -> None:
        """Begins to delete a topic whose time is over."""
        ...

    def drop(self, topic: "Topic", done: Callable[..., None]) -> None:
        """Deletes the topic as its kind demands."""
        ...

    def removed(self, topic: "Topic") -> None:
        """The topic is gone."""
        ...

    def release(self, source: "Topic") -> None:
        """One who read from this topic's records is gone."""
        ...


class Inheritance:
    """Records that a topic reads in another one, where they are: a link of the chain of forks.

    The work of a read must not grow with the number of forks between a stream and the one that holds the records, and
    must not recurse. `_parent` leaves out ancestors that hold nothing of what this topic inherits, so that `upto`
    shrinks at every step, and `_jump` leads far up the chain: both together find the holder of a seq in steps that
    grow with the logarithm of the length (jump pointers of a skew-binary list), with two fields for each fork.
    """

    __slots__ = ("_depth", "_first", "_generation", "_hidden", "_jump", "_parent", "below", "topic", "upto")

    deletes = 0
    """Counts deletes of inherited records in any topic: what an ancestor hides is looked up again after each."""

    def __init__(self, topic: "Topic | None", upto: int, below: int) -> None:
        self.topic = topic
        """The source; None only while recovery has not read everything."""
        self.upto = upto
        """The last seq that is inherited; the topic's own begin behind it."""
        self.below = below
        """Inherited records with a lower seq were deleted here."""
        self._parent: Topic | None = None
        self._jump: Topic | None = None
        self._depth = 0
        self._first = SEQ_BASE
        self._hidden, self._generation = 0, -1

    @property
    def parent(self) -> "Topic":
        """The nearest ancestor that holds some of the inherited records; without any, the oldest."""
        if self._parent is None:
            self._link_all()
        assert self._parent is not None
        return self._parent

    def holder(self, seq: int) -> "tuple[Topic, int]":
        """The ancestor that holds an inherited seq, and the last seq that is inherited from it."""
        at = self
        while True:
            parent = at.parent
            assert at._jump is not None
            far, near = at._jump.origin, parent.origin
            if far is not None and seq <= far.upto:
                at = far
            elif near is not None and seq <= near.upto:
                at = near
            else:
                return parent, at.upto

    def hidden_below(self) -> int:
        """The seq below which inherited records were deleted, in this topic or in one between it and their holder."""
        path, at = list[Inheritance](), self
        while at._generation != Inheritance.deletes:
            path.append(at)
            above = at.topic.origin if at.topic is not None else None
            if above is None:
                break
            at = above
        for link in reversed(path):
            above = link.topic.origin if link.topic is not None else None
            # A delete reaches what the source inherits or holds, not what a fork wrote under the same seqs.
            hidden = min(above._hidden, link.upto + 1) if above is not None else 0
            link._hidden, link._generation = max(link.below, hidden), Inheritance.deletes
        return self._hidden

    def delete_below(self, seq: int) -> None:
        """Hide inherited records, here and in everything that was forked from here."""
        if seq > self.below:
            self.below = seq
            Inheritance.deletes += 1

    def first_readable(self) -> int | None:
        """The first inherited seq that is live; None if there is none."""
        seq, hidden = self._first, self.hidden_below()
        while (seq := max(seq, hidden)) <= self.upto:
            holder, last = self.holder(seq)
            if (found := max(seq, holder.earliest)) <= last:
                # What is gone stays gone: the next call begins here.
                self._first = found
                return found
            seq = last + 1
        self._first = self.upto + 1
        return None

    def _link_all(self) -> None:
        """Link this and what lies between it and the next ancestor that is linked, the oldest first."""
        path, at = list[Inheritance](), self
        while at._parent is None:
            path.append(at)
            assert at.topic is not None
            if at.topic.origin is None:
                break
            at = at.topic.origin
        for link in reversed(path):
            link._link()

    def _link(self) -> None:
        source = self.topic
        assert source is not None
        above = source.origin
        if above is not None and self.upto <= above.upto:
            source, _ = above.holder(self.upto)
            above = source.origin
        self._parent = self._jump = source
        self._depth = 1
        if above is not None:
            self._depth = above._depth + 1
            assert above._jump is not None
            far = above._jump.origin
            if far is not None and far._jump is not None:
                farther = far._jump.origin
                if above._depth - far._depth == far._depth - (farther._depth if farther is not None else 0):
                    self._jump = far._jump


class Pager(Protocol):
    def restore(self, topic: "Topic") -> None:
        """Makes the object of a topic that is paged out the resident one."""
        ...


class Topic:
    __slots__ = (
        "__weakref__", "_closing", "_created", "_guard", "_staged_config", "cap_floor", "capture_due", "ceiling",
        "ceiling_staged", "coalesced", "config", "created_ts", "earliest", "epoch", "evict_floor", "evicting", "head",
        "id", "keys", "last_consumed_ts", "last_read_ts", "last_ts", "last_write_ts", "live_bytes", "live_count",
        "lost", "name", "next_base", "origin", "paged_out_by", "parts", "reserve", "reserved_at", "rules", "segments",
        "shard", "staged_bytes", "staged_count", "staged_head", "staged_ts", "sync_inflight", "tags", "tail",
        "tail_bytes", "tail_count", "ttl_floor", "unlogged", "waiters", "when_gone",
    )  # fmt: skip

    def __init__(
        self, topic_id: int, name: str, epoch: int, config: TopicConfig, created_ts: int, created: bool = False
    ) -> None:
        self.id, self.name, self.epoch = topic_id, name, epoch
        self.config = self._staged_config = config
        self.created_ts, self.shard = created_ts, 0
        self._created, self._closing = created, False
        self.capture_due = False
        """A checkpoint wants this topic's state as it is, before anything else changes it."""
        self.paged_out_by: Pager | None = None
        """Set while the topic is paged out and something still holds this object (`engine.topic_paging`)."""

        self.head = 0
        """The highest published seq."""
        self.earliest = SEQ_BASE
        """The first live seq; head + 1 when there is none. Everything below it is gone."""
        self.evict_floor = SEQ_BASE
        """Everything below it was lost to a cap or to time: the one trigger of tombstones for such loss."""
        self.cap_floor = self.ttl_floor = SEQ_BASE
        self.live_count = self.live_bytes = self.last_ts = 0

        self.staged_head = 0
        """The highest seq given out; equals `head` when nothing is on its way to the log."""
        self.staged_ts = self.staged_count = self.staged_bytes = self.next_base = 0
        self.sync_inflight = 0
        """Operations of this topic waiting for a sync. While there are any, none may overtake them."""
        self.ceiling = 0
        """No seq above it was given out before it was on disk (class disk)."""
        self.ceiling_staged = self.reserve = self.reserved_at = 0

        self.segments: list[Segment] = []
        self.tail: list[Block] = []
        self.tail_count = self.tail_bytes = 0
        """Records in the tail's blocks, and the memory these hold."""
        self.unlogged = False
        """Holds records that a replay would not have, so it would evict less: what a cap takes is a decision of its own
        meanwhile, logged like any other."""
        self.evicting = False
        """Whether such a decision is on its way."""
        self.lost: list[LostRange] | None = None
        self.keys: KeyMemory | None = None
        self.coalesced: Any = None
        """Single records that wait for the end of the tick (`engine.coalesce`); None while there are none."""
        self.tags: object | None = None
        self.parts: dict[str, object] | None = None
        """State of features (queue, router source, stream), by feature name."""
        self._guard: Guard | None = None
        self.rules = rules_of(config, True, created, False, False)
        """The write rules of the topic, including changes in flight."""
        self.origin: Inheritance | None = None
        self.waiters: list[Callable[[], None]] | None = None
        self.when_gone: list[Callable[[], None]] | None = None
        """Operations that came while the topic was being deleted; they concern the next one of its name."""
        self.last_write_ts = self.last_read_ts = self.last_consumed_ts = 0

    # Inputs of the write rules

    def _rule_anew(self) -> None:
        config = self._staged_config
        self.rules = rules_of(config, config is self.config, self._created, self._guard is not None, self._closing)

    @property
    def created(self) -> bool:
        """False while the frame that creates the topic is on its way to the disk: nobody sees it yet."""
        return self._created

    @created.setter
    def created(self, created: bool) -> None:
        self._created = created
        self._rule_anew()

    @property
    def closing(self) -> bool:
        """True while the frame that deletes the topic is on its way."""
        return self._closing

    @closing.setter
    def closing(self, closing: bool) -> None:
        self._closing = closing
        self._rule_anew()

    @property
    def guard(self) -> Guard | None:
        return self._guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        self._guard = guard
        self._rule_anew()

    @property
    def staged_config(self) -> TopicConfig:
        """The config that holds once everything on its way is applied: what new operations are decided by."""
        return self._staged_config

    @staged_config.setter
    def staged_config(self, config: TopicConfig) -> None:
        self._staged_config = config
        self._rule_anew()

    def configure(self, config: TopicConfig) -> None:
        """The config changes for readers as well."""
        self.config = config
        self.staged_config = config

    @property
    def next_seq(self) -> int:
        return self.head + 1

    def tell_next(self, woken: Callable[[], None]) -> None:
        """Calls back once after the next change."""
        if self.paged_out_by is not None:
            self.paged_out_by.restore(self)
        if self.waiters is None:
            self.waiters = [woken]
        else:
            self.waiters.append(woken)

    def tell_no_more(self, woken: Callable[[], None]) -> None:
        """Takes that wish back, where it is still to be fulfilled."""
        if self.waiters is not None and woken in self.waiters:
            self.waiters.remove(woken)

    def tell_when_gone(self, again: Callable[[], None]) -> None:
        """Calls back once the topic is deleted, or was not after all."""
        if self.when_gone is None:
            self.when_gone = []
        # Not a new list each time: tens of thousands may wait for one deletion.
        self.when_gone.append(again)

    def runs_from(self, seq: int) -> Iterator[Run]:
        """The runs that hold `seq` or anything behind it, in order."""
        segments, tail = self.segments, self.tail
        if segments and segments[-1].last_seq >= seq:
            yield from segments[bisect_left(segments, seq, key=_last_seq) :]
            yield from tail[:]
        elif tail:
            yield from tail[bisect_left(tail, seq, key=_last_seq) :]

    def run_from(self, seq: int) -> Run | None:
        """The first run that holds `seq` or anything behind it."""
        segments, tail = self.segments, self.tail
        if segments and segments[-1].last_seq >= seq:
            return segments[bisect_left(segments, seq, key=_last_seq)]
        if not tail:
            return None
        # Where batches are as large as each other, the distance says the place; a queue looks up its jobs here.
        first = tail[0]
        place = (seq - first.first_seq) // first.count
        if 0 <= place < len(tail) and 0 <= seq - (guess := tail[place]).first_seq < guess.count:
            return guess
        place = bisect_left(tail, seq, key=_last_seq)
        return tail[place] if place < len(tail) else None

    def has_segment(self, segment: Segment) -> bool:
        """Whether a segment still holds something live."""
        place = bisect_left(self.segments, segment.last_seq, key=_last_seq)
        return place < len(self.segments) and self.segments[place] is segment

    def first_run(self) -> Run | None:
        if self.segments:
            return self.segments[0]
        return self.tail[0] if self.tail else None


def _last_seq(run: Run) -> int:
    return run.first_seq + run.count - 1
