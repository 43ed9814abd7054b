"""The streams of subscriptions: which there are, and which have something new."""

from collections.abc import Callable, Iterable
from itertools import islice

from topics.core.errors import InvalidRequestError, OffsetGoneError, TopicsError
from topics.core.names import is_server_name
from topics.engine.topic import Topic
from topics.streams.offsets import START, decode_offset, offset_of, read_offset, tail_offset
from topics.streams.service import Streams
from topics.streams.subscriptions.book import Book
from topics.streams.subscriptions.model import Link, Subscription
from topics.streams.subscriptions.patterns import literal_prefix

MATCHES_MAX = 10_000
"""Streams that a pattern may fit when its subscription is made: each is watched, and told of in every answer."""
_MATCHED_AT_ONCE = 2_000
_LOOKED_AT_ONCE = 500
"""What is done in one turn of the loop: a few milliseconds."""


class Links:
    def __init__(self, streams: Streams, book: Book, news: Callable[[Subscription], None]) -> None:
        self._streams = streams
        self._core = streams.engine.core
        self._book = book
        self._news = news
        """Told of a subscription that has something to do."""
        self.coming: list[Subscription] = []
        """Those that are being made: what comes to be meanwhile is theirs, too."""
        for subscription in book.all.values():
            for name in self.matching(subscription):
                if name not in subscription.left_out or subscription.left_out[name] != self.epoch(name):
                    subscription.links.setdefault(name, Link(explicit=False))
        self._core.added.append(self._added)

    def matching(self, subscription: Subscription) -> list[str]:
        """The streams there are that the pattern fits."""
        if not subscription.request.pattern:
            return []
        names = self._core.names_from(literal_prefix(subscription.request.pattern), "")
        return [name for name in names if subscription.matches(name) and not is_server_name(name)]

    def match_all(self, subscription: Subscription, done: Callable[[list[str] | TopicsError], None]) -> None:
        """The same for somebody who waits: a number of names at a time, as there may be very many to look at."""
        pattern = subscription.request.pattern
        found: list[str] = []

        def look(after: str) -> None:
            names = list(islice(self._core.names_from(literal_prefix(pattern or ""), after), _MATCHED_AT_ONCE))
            found.extend(name for name in names if subscription.matches(name) and not is_server_name(name))
            if len(found) > MATCHES_MAX:
                said = f"pattern: fits more than {MATCHES_MAX} streams"
                done(InvalidRequestError(said, field="pattern", max=MATCHES_MAX))
            elif len(names) < _MATCHED_AT_ONCE:
                done(found)
            else:
                self._core.defer(lambda: look(names[-1]))

        if pattern:
            look("")
        else:
            done(found)

    def look_at(self, subscription: Subscription, names: list[str]) -> None:
        """Looks at some streams, a number of them at a time."""
        for name in names[:_LOOKED_AT_ONCE]:
            self.look(subscription, name)
        rest = names[_LOOKED_AT_ONCE:]
        if rest:
            self._core.defer(lambda: self.look_at(subscription, rest))

    def tail(self, name: str) -> str:
        topic = self._core.by_name.get(name)
        return tail_offset(topic) if topic is not None and topic.created else START

    def epoch(self, name: str) -> int:
        """Which stream has a name now; 0 where none has."""
        topic = self._core.glance(name)
        return topic.epoch if topic is not None else 0

    def place(self, name: str, offset: str) -> str:
        """An acknowledged offset in the server's own spelling, in which offsets can be compared; the start where it is
        one of an earlier stream of that name. Raises InvalidRequestError for a place that the stream has not reached:
        everything up to there would count as done, and nothing could ever be acknowledged again.
        """
        epoch, _, _ = decode_offset(offset)
        topic = self._core.by_name.get(name)
        if topic is None or not topic.created:
            return START
        try:
            return offset_of(topic, read_offset(topic, offset))
        except OffsetGoneError as error:
            if epoch < topic.epoch:
                return START
            raise InvalidRequestError(f"acks: {error.message}", field="acks") from error

    def look(self, subscription: Subscription, name: str) -> None:
        """Finds out whether a stream has something new, and watches it."""
        link = subscription.links.get(name)
        if link is None or self._book.all.get(subscription.id) is not subscription:
            return
        if link.unwatch is None:

            def woken() -> None:
                link.unwatch = None
                self.look(subscription, name)

            try:
                link.unwatch = self._streams.watch(self._streams.topic(name), woken)
            except TopicsError:
                # It is not there, or no longer.
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
        """Acknowledgements are kept: from now on they count."""
        for name, offset in offsets.items():
            link = subscription.links.get(name)
            if link is not None:
                link.acked = offset
                if not self._is_pending(name, link):
                    subscription.pending.discard(name)

    def cut(self, subscription: Subscription, name: str) -> None:
        """Has nothing to do with a stream any more."""
        link = subscription.links.pop(name, None)
        subscription.pending.discard(name)
        if link is not None and link.unwatch is not None:
            link.unwatch()

    def describe(self, subscription: Subscription, names: Iterable[str] | None = None) -> list[dict[str, object]]:
        """A subscription's streams, as answers and wake-ups tell of them; only some, for whoever asks bit by bit."""
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
        for subscription in [*self._book.all.values(), *self.coming]:
            if topic.name in subscription.links or subscription.matches(topic.name):
                # What was acknowledged or taken out before was another stream of that name.
                subscription.left_out.pop(topic.name, None)
                subscription.links.setdefault(topic.name, Link(explicit=False)).acked = START
                self._look_later(subscription, topic.name)

    def _look_later(self, subscription: Subscription, name: str) -> None:
        # When the tick is over: the topic is just coming to be, and may bring its first records along.
        self._core.defer(lambda: self.look(subscription, name))

    def _is_pending(self, name: str, link: Link) -> bool:
        topic = self._core.by_name.get(name)
        if topic is None or not topic.created:
            return False
        try:
            return read_offset(topic, link.acked).counter < topic.head
        except TopicsError:
            return topic.head > 0
