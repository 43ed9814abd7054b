"""Resources of a stream that a client may ask for again only if they changed, or wait for until they do.

A tag is a digest of the body, so it moves exactly when the resource does. Whoever waits with `live` and the tag of what
it has is answered when the tag is another one, or with 304 when its time is over. All who wait for the same resource of
the same stream share one look at it: a change costs them one body, however many they are.
"""

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from topics.api.auth import Key
from topics.api.calls import Call
from topics.api.v1.answers import NO_STORE, answer, refuse
from topics.api.v1.caching import has_it
from topics.api.v1.values import read_duration_ms, read_integer
from topics.core.errors import InvalidRequestError, TopicsError
from topics.engine.topic import Topic
from topics.streams.service import Streams

_encode = msgspec.json.Encoder().encode
_DIGEST_BYTES = 20
_SHARED_S = 0.02
_LIVE = {"": False, "true": True, "1": True, "long-poll": True}

Look = Callable[[Topic, Streams], dict[str, Any]]


class Shown(NamedTuple):
    """A resource as it is now."""

    etag: str
    body: bytes

    def answer(self, call: Call) -> None:
        """Answers with the body, or with 304 where the client has it."""
        headers = (NO_STORE, ("etag", self.etag))
        if self.is_known(call):
            answer(call, 304, headers)
        else:
            answer(call, 200, headers, self.body, "application/json")

    def is_known(self, call: Call) -> bool:
        return has_it(call.exchange.head.headers.get("if-none-match"), self.etag)


class Inspected:
    """One resource that every stream has; `look` makes its document."""

    def __init__(self, word: str, look: Look, wait_ms: int, wait_max_ms: int) -> None:
        """`word` begins its tags. `wait_ms` is how long one waits unless told, `wait_max_ms` the longest."""
        self._word = word
        self._look = look
        self._wait_ms = wait_ms
        self._wait_max_ms = wait_max_ms
        self._watched: dict[Topic, _Watched] = {}

    def show(self, call: Call, streams: Streams) -> None:
        topic = streams.topic(call.topic)
        wait_s = self._parse_wait(call)
        streams.engine.catch_up(topic)
        shown = self.of(topic, streams)
        if wait_s is None or not shown.is_known(call):
            shown.answer(call)
            return
        watched = self._watched.get(topic)
        if watched is None:
            watched = self._watched[topic] = _Watched(self, topic, streams)
        watched.add(_Waiting(call, watched, wait_s))

    def _parse_wait(self, call: Call) -> float | None:
        """How long to wait, in seconds; None where the answer is wanted now."""
        query = call.query
        live = _LIVE.get(query.get("live", ""))
        if live is None or query.get("live") == "":
            raise InvalidRequestError("query live: must be true or long-poll", field="live")
        wait_ms = self._wait_ms
        if "timeout_ms" in query:
            wait_ms = read_integer("query timeout_ms", query["timeout_ms"])
        if "timeout" in query:
            wait_ms = read_duration_ms("timeout", query["timeout"], bare_ms=1)
        return min(wait_ms, self._wait_max_ms) / 1000 if live else None

    def of(self, topic: Topic, streams: Streams) -> Shown:
        """The resource as it is. Raises where the stream is no longer there."""
        streams.check_there(topic)
        streams.engine.core.expire(topic)
        body = _encode(self._look(topic, streams))
        return Shown(f'W/"{self._word}:{blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()}"', body)

    def forget(self, topic: Topic) -> None:
        """Nobody waits for it any more."""
        self._watched.pop(topic, None)


class _Watched:
    """A resource of one stream that some wait for."""

    def __init__(self, resource: Inspected, topic: Topic, streams: Streams) -> None:
        self._resource = resource
        self._topic = topic
        self._streams = streams
        self._waiting: set[_Waiting] = set()
        self._seen: tuple[float, Shown | TopicsError] | None = None
        self._unwatch = streams.watch(topic, self._changed)

    def add(self, waiting: "_Waiting") -> None:
        self._waiting.add(waiting)

    def discard(self, waiting: "_Waiting") -> None:
        self._waiting.discard(waiting)
        if not self._waiting:
            self._unwatch()
            self._resource.forget(self._topic)

    def now(self) -> Shown | TopicsError:
        """How it stands. Many whose time is over at once share a look; what was looked at before a change is not kept
        beyond it."""
        at = asyncio.get_running_loop().time()
        if self._seen is None or at - self._seen[0] >= _SHARED_S:
            self._seen = (at, self._look())
        return self._seen[1]

    def _look(self) -> Shown | TopicsError:
        try:
            return self._resource.of(self._topic, self._streams)
        except TopicsError as error:
            return error

    def _changed(self) -> None:
        self._seen = None
        shown = self.now()
        try:
            self._unwatch = self._streams.watch(self._topic, self._changed)
        except TopicsError as error:
            shown = error
        for waiting in list(self._waiting):
            if isinstance(shown, TopicsError) or not shown.is_known(waiting.call):
                waiting.finish(shown)


class _Waiting:
    """One request that waits."""

    def __init__(self, call: Call, watched: _Watched, wait_s: float) -> None:
        self.call = call
        self._watched = watched
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.end)
        call.waits.add(self)
        call.on_gone(self._over)

    @property
    def key(self) -> Key:
        """Whose request it is: one whose key is taken away does not go on."""
        return self.call.key

    def end(self) -> None:
        """Its time is over, or the server stops: what there is now is the answer."""
        self.finish(self._watched.now())

    def finish(self, shown: Shown | TopicsError) -> None:
        self._over()
        if isinstance(shown, TopicsError):
            refuse(self.call, shown)
        else:
            shown.answer(self.call)

    def _over(self) -> None:
        self._timer.cancel()
        self.call.waits.discard(self)
        self._watched.discard(self)
