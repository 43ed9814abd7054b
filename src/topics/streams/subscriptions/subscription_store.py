"""Subscription store: all subscriptions, persisted as a log of changes in a system topic."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, execute_read, plan_read
from topics.engine.results import AppendResult
from topics.engine.topic import Topic
from topics.engine.topic_admin import SystemTopic
from topics.model.errors import InvalidRequestError, OffsetGoneError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector
from topics.model.topic_config import SUBSCRIPTIONS_TOPIC, Durability, TopicConfig, is_server_name
from topics.streams.stream_state import START, decode_offset, offset_of, read_offset, tail_offset
from topics.streams.streams import Streams
from topics.streams.subscriptions.subscription import Link, Owner, Subscription, SubscriptionRequest, literal_prefix
from topics.streams.subscriptions.webhook_security import SEED_BYTES, Signer

# The change log: a hidden topic with one record per change.
#
# Reading the records in order gives the state. When most of them are obsolete, the state is written again and the
# records before it are deleted (log compaction).

NAME = SUBSCRIPTIONS_TOPIC
Done = Callable[[TopicsError | None], None]


class Store:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._guard = SystemTopic()
        self._topic: Topic | None = engine.find(NAME)
        if self._topic is not None:
            self._topic.guard = self._guard

    def load(self) -> Iterator[dict[str, Any]]:
        """Yields all changes, oldest first."""
        topic, cursor = self._topic, 0
        while topic is not None and cursor < topic.head:
            plan = plan_read(topic, ReadRequest(from_seq=cursor, limit=1000))
            found = execute_read(plan, self._engine.reader)
            for record in found.records():
                yield msgspec.convert(record["data"], dict[str, Any])
            cursor = found.next_from_seq

    @property
    def size(self) -> int:
        return self._topic.live_count if self._topic is not None else 0

    def write(self, changes: Sequence[object], done: Done) -> None:
        """Append changes atomically."""
        topic = self._topic
        if topic is None:
            topic = self._topic = self._engine.new_topic(NAME, TopicConfig(durability=Durability.FSYNC))
            topic.guard = self._guard

        def written(outcome: AppendResult | TopicsError) -> None:
            if isinstance(outcome, TopicsError) and not topic.created:
                self._topic = None
            done(outcome if isinstance(outcome, TopicsError) else None)

        self._engine.write(topic, Batch(records=[Record.of(change) for change in changes]), written)

    def rewrite(self, state: Sequence[object], done: Callable[[], None]) -> None:
        """Replaces the changes by the whole state (log compaction).

        `done` is called at the end in any case: until then everything exists twice, and a failure changes nothing.
        """
        topic = self._topic
        assert topic is not None, "what is rewritten was written before"
        first = topic.staged_head + 1

        def written(error: TopicsError | None) -> None:
            if error is not None:
                done()
                return
            self._guard.lifted = True
            try:
                self._engine.delete_records(NAME, DeleteSelector(first, None), lambda outcome: done())
            except TopicsError:
                done()  # They are only obsolete; the next compaction removes them.
            finally:
                self._guard.lifted = False

        try:
            self.write(state, written)
        except TopicsError:
            done()


Outcome = Callable[[TopicsError | None], None]
Change = dict[str, object]

_REWRITE_AT = 1000
_ACKS_TOGETHER = 500
"""The number of positions in streams in one change: a record for each of ten thousand would block the loop."""


class SubscriptionTable:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = Store(engine)
        self._signer: Signer | None = None
        self._seed = b""
        self._key_kept = False
        self.all: dict[str, Subscription] = {}
        self._of_owner: Counter[Owner] = Counter()
        self._under_way: dict[int, Sequence[Change]] = {}
        """Changes being written to the disk, in their order: not yet applied in memory."""
        self._writes = 0
        self._rewriting = False
        for change in self._store.load():
            self._replay(change)

    @property
    def signer(self) -> Signer:
        """The signing key. It is created on first use and stored with the first subscription."""
        if self._signer is None:
            self._seed = self._engine.entropy.token(SEED_BYTES)
            self._signer = Signer(self._seed)
        return self._signer

    def add(self, subscription: Subscription) -> None:
        self.all[subscription.id] = subscription
        self._of_owner[subscription.owner or ()] += 1

    def remove(self, subscription: Subscription | None) -> None:
        """Removes a subscription, if it exists."""
        if subscription is not None:
            del self.all[subscription.id]
            self._of_owner[subscription.owner or ()] -= 1

    def count_of(self, owner: Owner) -> int:
        """The number of subscriptions of an owner."""
        return self._of_owner[owner]

    def mark(self, text: str) -> str:
        """Returns a MAC of a text by this server's secret."""
        return self.signer.mark(text)

    def write(self, changes: Sequence[Change], done: Outcome) -> None:
        """Persists changes atomically; `done` is called when they are durable."""
        if not self._key_kept:
            changes = [self._key(), *changes]

        self._writes += 1
        number = self._writes
        self._under_way[number] = changes

        def written(error: TopicsError | None) -> None:
            self._key_kept = self._key_kept or error is None
            try:
                done(error)
            finally:
                del self._under_way[number]

        try:
            self._store.write(changes, written)
        except TopicsError:
            self._under_way.pop(number, None)
            raise
        live = len(self.all) + sum(len(one.links) + len(one.left_out) for one in self.all.values())
        if self._store.size > _REWRITE_AT + 4 * live and not self._rewriting:
            self._rewrite()

    def _rewrite(self) -> None:
        """Replaces the logged changes by the state that they produced, followed by the changes in flight.

        Changes in flight are in no state yet and would be lost with the entries before them.
        """
        self._rewriting = True

        def rewritten() -> None:
            self._rewriting = False

        self._store.rewrite([*self._state(), *chain.from_iterable(self._under_way.values())], rewritten)

    def _replay(self, change: dict[str, Any]) -> None:
        op = change["op"]
        if op == "key":
            self._seed, self._key_kept = b64decode(change["seed"]), True
            self._signer = Signer(self._seed)
        elif op == "put":
            request = msgspec.convert(change["request"], SubscriptionRequest)
            owner = change.get("owner")
            made = Subscription(
                change["id"], request, change["base_url"], change["created_ms"], None if owner is None else tuple(owner)
            )
            made.generation = change.get("generation", 0)
            made.links = {name: Link(explicit=True) for name in request.streams}
            self.remove(self.all.get(made.id))
            self.add(made)
        elif op == "drop":
            self.remove(self.all.get(change["id"]))
        elif (known := self.all.get(change["id"])) is not None:
            _change(known, op, change)

    def _key(self) -> Change:
        _ = self.signer
        return {"op": "key", "seed": b64encode(self._seed).decode()}

    def _state(self) -> list[Change]:
        """The state as the smallest list of changes."""
        state = [self._key()]
        for one in self.all.values():
            state.append({**put_change(one), "generation": one.generation})
            # A stream named at first may have been unlinked since.
            state += [unlink_change(one, name, 0) for name in one.request.streams if name not in one.links]
            one.left_out = {name: epoch for name, epoch in one.left_out.items() if self._is_there(name, epoch)}
            state += [unlink_change(one, name, epoch) for name, epoch in one.left_out.items()]
            state.append(link_change(one, [name for name, link in one.links.items() if link.explicit]))
            state += ack_changes(one, {name: link.acked for name, link in one.links.items()})
        return state

    def _is_there(self, name: str, epoch: int) -> bool:
        topic = self._engine.peek(name)
        return topic is not None and topic.epoch == epoch


def _change(subscription: Subscription, op: str, change: dict[str, Any]) -> None:
    links, left_out = subscription.links, subscription.left_out
    if op == "generation":
        subscription.generation = change["generation"]
    elif op == "ack":
        _acked(subscription, change["path"], change["offset"])
    elif op == "acks":
        for path, offset in change["offsets"].items():
            _acked(subscription, path, offset)
    elif op == "link":
        for path in change["paths"]:
            left_out.pop(path, None)
            links.setdefault(path, Link(explicit=True)).explicit = True
    elif op == "unlink":
        links.pop(change["path"], None)
        # Entries from before epochs were stored do not identify a stream.
        if epoch := change.get("epoch", 0):
            left_out[change["path"]] = epoch


def _acked(subscription: Subscription, path: str, offset: str) -> None:
    out = subscription.left_out.get(path)
    if out is not None and decode_offset(offset)[0] == out:
        # It was removed meanwhile.
        return
    subscription.left_out.pop(path, None)
    subscription.links.setdefault(path, Link(explicit=False)).acked = offset


def put_change(subscription: Subscription) -> Change:
    return {
        "op": "put", "id": subscription.id, "base_url": subscription.base_url, "created_ms": subscription.created_ms,
        "request": subscription.request, "owner": subscription.owner,
    }  # fmt: skip


def drop_change(subscription: Subscription) -> Change:
    return {"op": "drop", "id": subscription.id}


def ack_changes(subscription: Subscription, offsets: dict[str, str]) -> list[Change]:
    """The acknowledged offsets of some streams, except for those at the start."""
    moved = [(name, offset) for name, offset in offsets.items() if offset != START]
    if len(moved) == 1:
        return [{"op": "ack", "id": subscription.id, "path": moved[0][0], "offset": moved[0][1]}]
    return [
        {"op": "acks", "id": subscription.id, "offsets": dict(moved[begin : begin + _ACKS_TOGETHER])}
        for begin in range(0, len(moved), _ACKS_TOGETHER)
    ]


def link_change(subscription: Subscription, names: list[str]) -> Change:
    return {"op": "link", "id": subscription.id, "paths": names}


def unlink_change(subscription: Subscription, name: str, epoch: int) -> Change:
    return {"op": "unlink", "id": subscription.id, "path": name, "epoch": epoch}


def generation_change(subscription: Subscription) -> Change:
    return {"op": "generation", "id": subscription.id, "generation": subscription.generation}


# Streams of subscriptions: matching, watching, and detection of new entries.

MATCHES_MAX = 10_000
"""The maximum number of streams that a pattern may match at creation: each is watched, and listed in every answer."""
_MATCHED_AT_ONCE = 2_000
_LOOKED_AT_ONCE = 500
"""Work per turn of the loop: a few milliseconds."""


class Links:
    def __init__(self, streams: Streams, table: SubscriptionTable, news: Callable[[Subscription], None]) -> None:
        self._streams = streams
        self._engine = streams.engine
        self._table = table
        self._news = news
        """Called with a subscription that has new entries."""
        self.coming: list[Subscription] = []
        """Subscriptions being created: they get streams that are created meanwhile, too."""
        for subscription in table.all.values():
            for name in self.matching(subscription):
                if name not in subscription.left_out or subscription.left_out[name] != self.epoch(name):
                    subscription.links.setdefault(name, Link(explicit=False))
        self._engine.topic_added.subscribe(self._added)

    def matching(self, subscription: Subscription) -> list[str]:
        """Existing streams that match the pattern."""
        if not subscription.request.pattern:
            return []
        names = self._engine.names_from(literal_prefix(subscription.request.pattern), "")
        return [name for name in names if subscription.matches(name) and not is_server_name(name)]

    def match_all(self, subscription: Subscription, done: Callable[[list[str] | TopicsError], None]) -> None:
        """The asynchronous form: in portions, because there may be very many names."""
        pattern = subscription.request.pattern
        found: list[str] = []

        def look(after: str) -> None:
            names = list(islice(self._engine.names_from(literal_prefix(pattern or ""), after), _MATCHED_AT_ONCE))
            found.extend(name for name in names if subscription.matches(name) and not is_server_name(name))
            if len(found) > MATCHES_MAX:
                said = f"pattern: fits more than {MATCHES_MAX} streams"
                done(InvalidRequestError(said, field="pattern", max=MATCHES_MAX))
            elif len(names) < _MATCHED_AT_ONCE:
                done(found)
            else:
                self._engine.defer(lambda: look(names[-1]))

        if pattern:
            look("")
        else:
            done(found)

    def look_at(self, subscription: Subscription, names: list[str]) -> None:
        """Examines streams in portions."""
        for name in names[:_LOOKED_AT_ONCE]:
            self.look(subscription, name)
        rest = names[_LOOKED_AT_ONCE:]
        if rest:
            self._engine.defer(lambda: self.look_at(subscription, rest))

    def tail(self, name: str) -> str:
        topic = self._engine.find(name)
        return tail_offset(topic) if topic is not None and topic.created else START

    def epoch(self, name: str) -> int:
        """The id of the stream with a name; 0 if there is none."""
        topic = self._engine.peek(name)
        return topic.epoch if topic is not None else 0

    def place(self, name: str, offset: str) -> str:
        """Returns an acknowledged offset in canonical form, in which offsets can be compared; the start if it belongs
        to an earlier stream of that name. Raises InvalidRequestError for an offset beyond the end: later entries would
        count as acknowledged."""
        epoch, _, _ = decode_offset(offset)
        topic = self._engine.find(name)
        if topic is None or not topic.created:
            return START
        try:
            return offset_of(topic, read_offset(topic, offset))
        except OffsetGoneError as error:
            if epoch < topic.epoch:
                return START
            raise InvalidRequestError(f"acks: {error.message}", field="acks") from error

    def look(self, subscription: Subscription, name: str) -> None:
        """Checks whether a stream has new entries, and watches it."""
        link = subscription.links.get(name)
        if link is None or self._table.all.get(subscription.id) is not subscription:
            return
        if link.unwatch is None:

            def woken() -> None:
                link.unwatch = None
                self.look(subscription, name)

            try:
                link.unwatch = self._streams.watch(self._streams.topic(name), woken)
            except TopicsError:
                # It does not exist, or was deleted.
                subscription.pending.discard(name)
                if not link.explicit:
                    del subscription.links[name]
                return
        if self._is_pending(name, link):
            subscription.pending.add(name)
            self._news(subscription)
        else:
            subscription.pending.discard(name)

    def moved(self, subscription: Subscription, offsets: dict[str, str]) -> None:
        """Applies durable acknowledgements."""
        for name, offset in offsets.items():
            link = subscription.links.get(name)
            if link is not None:
                link.acked = offset
                if not self._is_pending(name, link):
                    subscription.pending.discard(name)

    def cut(self, subscription: Subscription, name: str) -> None:
        """Unlinks a stream."""
        link = subscription.links.pop(name, None)
        subscription.pending.discard(name)
        if link is not None and link.unwatch is not None:
            link.unwatch()

    def describe(self, subscription: Subscription, names: Iterable[str] | None = None) -> list[dict[str, object]]:
        """Returns a subscription's streams for answers and wake-ups; with bounds only a part of them, for work in
        steps.
        """
        links = subscription.links
        return [
            {
                "path": name, "link_type": "explicit" if link.explicit else "pattern", "acked_offset": link.acked,
                "tail_offset": self.tail(name), "has_pending": name in subscription.pending,
            }
            for name in (links if names is None else names)
            if (link := links.get(name)) is not None
        ]  # fmt: skip

    def _added(self, topic: Topic) -> None:
        if is_server_name(topic.name):
            return
        for subscription in [*self._table.all.values(), *self.coming]:
            if topic.name in subscription.links or subscription.matches(topic.name):
                # Earlier acknowledgements and unlinks concerned another stream of that name.
                subscription.left_out.pop(topic.name, None)
                subscription.links.setdefault(topic.name, Link(explicit=False)).acked = START
                self._look_later(subscription, topic.name)

    def _look_later(self, subscription: Subscription, name: str) -> None:
        # At the end of the tick: the topic is just being created, possibly with its first records.
        self._engine.defer(lambda: self.look(subscription, name))

    def _is_pending(self, name: str, link: Link) -> bool:
        topic = self._engine.find(name)
        if topic is None or not topic.created:
            return False
        try:
            return read_offset(topic, link.acked).counter < topic.head
        except TopicsError:
            return topic.head > 0
