"""Compares `__registry__` with the streams there are, and tells what it does not say.

The last entry of each stream in the log is how a reader of the log believes it to stand. Where that differs, an entry
is missing: it is told now, late and in the words of today. A stream that is older than the log, or than the oldest
creation that its cap has left in it, counts as told; which of two is older their epochs say, and no clock.

It goes by short steps with a pause behind each, since a request that finds one on its way waits for its end, and this
is in no hurry. What happens meanwhile is told as it happens, and whatever it happens to is left out here.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from topics.core.errors import TopicsError
from topics.core.names import is_server_name
from topics.engine.read import ReadRequest, ReadResult, execute_read
from topics.engine.topic import Topic
from topics.streams.early import Later
from topics.streams.service import Streams
from topics.streams.system.lifecycle_event import Standing, end_of, event_of, standing_of

STEP = 100
"""Streams that are looked at in one step: about a millisecond, as the other steps are."""
PAUSE_S = 0.01
_ENTRIES_A_STEP = 500
_NUMBERS_A_STEP = 2_000

Told = Callable[[dict[str, Any]], None]
Done = Callable[[TopicsError | None], None]


class Reconciler:
    def __init__(self, streams: Streams, log: Topic, told: Told, later: Later, skip: set[str], done: Done) -> None:
        self._streams = streams
        self._core = streams.engine.core
        self._log = log
        self._upto = log.head
        self._behind = streams.engine.core.next_topic_id
        self._told = told
        self._later = later
        self._done = done
        self._standing: dict[str, Standing] = {}
        self._compared: set[int] = set()
        """The streams of the log that are there, by their epochs."""
        self._first_epoch = log.epoch
        """Streams of lower epochs count as told."""
        self._is_cut = log.evict_floor > 1
        self.skip = skip
        """Streams to which something happened since it began."""

    def begin(self) -> None:
        self._read(0)

    # The log

    def _read(self, cursor: int) -> None:
        if cursor >= self._upto:
            self._compare(iter(list(self._standing.values())))
            return
        request = ReadRequest(from_seq=cursor, limit=_ENTRIES_A_STEP, up_to=self._upto)
        try:
            self._streams.engine.read_as(self._log, request, execute_read, lambda found: self._got(cursor, found))
        except TopicsError as error:
            self._done(error)

    def _got(self, cursor: int, found: ReadResult | TopicsError) -> None:
        if isinstance(found, TopicsError):
            self._done(found)
            return
        for record in found.records():
            standing = msgspec.convert(record["data"], Standing)
            if self._is_cut and standing.event == "created":
                self._first_epoch, self._is_cut = standing.epoch, False
            if standing.event == "deleted":
                self._standing.pop(standing.stream, None)
            else:
                self._standing[standing.stream] = standing
        # Over a range that a crash took there are no entries, but it is passed.
        following = found.next_from_seq if found.next_from_seq > cursor else self._upto
        self._later(PAUSE_S, lambda: self._read(following))

    # The streams

    def _compare(self, standing: Iterator[Standing]) -> None:
        """What the log believes to be there, against what is."""
        some = list(islice(standing, STEP))
        for one in some:
            if one.stream not in self.skip:
                self._compare_one(one)
        if len(some) == STEP:
            self._later(PAUSE_S, lambda: self._compare(standing))
        else:
            self._look_for_new(self._first_epoch + 1)

    def _compare_one(self, believed: Standing) -> None:
        topic = self._core.glance(believed.stream)
        now = self._core.wall()
        if topic is None or not self._streams.is_listed(topic) or topic.epoch != believed.epoch:
            self._told(end_of(believed, now))
            # Another stream that has the name by now is looked for with the new ones.
            return
        self._compared.add(believed.epoch)
        stands = standing_of(topic)
        if stands.contract != believed.contract:
            self._told(event_of("profile" if stands.profile != believed.profile else "schema", topic, now))
        if stands.closed != believed.closed:
            # A stream of a weaker class may have been closed, and told so, and be open after a power cut.
            self._told(event_of("closed" if stands.closed else "created", topic, now))

    def _look_for_new(self, first: int) -> None:
        """What is there, and not in the log. A topic's number is its epoch: those that are older than the log, which
        may be a million, are not even counted."""
        end = min(first + _NUMBERS_A_STEP, self._behind)
        awake, sleeps = self._core.topics, self._core.sleepers.sleeps
        unknown = [number for number in range(first, end) if number not in self._compared]
        new = [number for number in unknown if number in awake or sleeps(number)]
        for number in new[:STEP]:
            self._look_at(number)
        following = new[STEP] if len(new) > STEP else end
        if following < self._behind:
            self._later(PAUSE_S, lambda: self._look_for_new(following))
        else:
            self._done(None)

    def _look_at(self, number: int) -> None:
        topic = self._core.glance_at(number)
        if topic is None or topic.name in self.skip or is_server_name(topic.name):
            return
        if self._streams.is_listed(topic):
            self._told(event_of("created", topic, self._core.wall()))
