"""The touches of one stream: a reader of it that tells those who wait for a key.

It begins when somebody first asks, and reads what is appended from then on, whichever way it came. Nothing of it is
kept over a restart: then the epoch is another, and whoever comes with an old cursor is told to look again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from topics.core.errors import TopicsError
from topics.engine.topic import Topic
from topics.schema.profiles.state_protocol import Touch
from topics.schema.touch_keys import key_id, table_key
from topics.schema.touch_requests import Activation, WaitRequest
from topics.schema.touches import Template, change_entity, touched_by
from topics.streams.early import Later
from topics.streams.offsets import Position
from topics.streams.reading import ReadSpec, StreamSlice
from topics.streams.touch.budget import FineBudget
from topics.streams.touch.journal import ANY_FINE, ANYTHING, Generation, Journal, Waiter
from topics.streams.touch.templates import ActiveTemplates

_BATCH = 256
"""Entries that are looked at in one turn of the loop."""
_WAKES = 256
"""Those who wait that are told in one turn of the loop."""
_decode = msgspec.json.Decoder().decode

Read = Callable[[Topic, ReadSpec, Callable[[StreamSlice | TopicsError], None]], None]
Watch = Callable[[Topic, Callable[[], None]], Callable[[], None]]


class Surroundings(NamedTuple):
    """What the touches of a stream need of the server."""

    read: Read
    watch: Watch
    later: Later
    settings: Callable[[Topic], Touch | None]
    """What a stream says about its touches now; None where they are off."""
    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]


class Outcome(NamedTuple):
    """How a wait ended. A stale one is for another epoch, or the routes are off now."""

    kind: str
    cursor: str
    touched: bool
    generation: Generation
    stale: bool = False


class Counters:
    """What was done since the touches of the stream began."""

    def __init__(self) -> None:
        self.entries = self.batches = self.batches_without = 0
        self.tables = self.fine = self.dropped = self.flushes = self.woken = 0
        self.waits_touched = self.waits_over = self.waits_stale = 0


class StreamTouch:
    def __init__(self, topic: Topic, settings: Touch, epoch: str, around: Surroundings) -> None:
        self.topic = topic
        self.settings = settings
        self.journal = Journal(epoch, settings.memory.pending_max_keys)
        self.templates = ActiveTemplates(settings.templates)
        self.budget = FineBudget(settings, around.steady_ms())
        self.counters = Counters()
        self.used_ms = around.steady_ms()
        self.position = topic.head
        """How far the stream was looked at."""
        self._around = around
        self._reading = False
        self._flush_due: Callable[[], None] | None = None
        self._settling: list[Callable[[], None]] = []
        self._unwatch = around.watch(topic, self._changed)
        self.over = False
        """Whether it has ended: the next who asks begins another epoch."""

    # Asked from outside

    def activate(self, request: Activation) -> list[tuple[Template, str]]:
        """Begins to look at changes for templates; each with why not, empty where it does."""
        now = self._use()
        return [(template, self._activate(template, request.inactivity_ttl_ms, now)) for template in request.templates]

    def wait(self, request: WaitRequest, done: Callable[[Outcome], None]) -> Callable[[], Outcome] | None:
        """Calls back when one of the keys was touched behind the cursor: at once, and then it returns None; or later,
        unless what it returns is called before, which ends the wait and tells how it stands."""
        now = self._use()
        for template in request.declared:
            self._activate(template, request.inactivity_ttl_ms, now)
        kind, keys = self._interest(request, now)
        since = self.journal.read_cursor(request.cursor)
        if since is None:
            self.counters.waits_stale += 1
            done(self._outcome(kind, stale=True))
            return None
        if self.journal.is_touched(keys, since) or self._unseen(request, since):
            self._tell(done, kind, touched=True)
            return None
        waiter = Waiter(keys, lambda: self._tell(done, kind, touched=not self.over))
        self.journal.join(waiter)

        def end() -> Outcome:
            self.journal.leave(waiter)
            self.counters.waits_over += 1
            return self._outcome(kind)

        return end

    def when_settled(self, settled: Callable[[], None]) -> Callable[[], None]:
        """Calls back once everything that is in the stream now was told. Returns what takes it back."""
        self._use()
        if self.is_settled:
            settled()
            return _nothing
        self._settling.append(settled)
        return lambda: self._settling.remove(settled) if settled in self._settling else None

    @property
    def is_settled(self) -> bool:
        return self.position >= self.topic.head and not self.journal.has_pending

    @property
    def lag(self) -> int:
        return max(self.topic.head - self.position, 0)

    def end(self) -> None:
        """The routes are off, or the stream is gone: everybody is told."""
        if self.over:
            return
        self.over = True
        self._unwatch()
        if self._flush_due is not None:
            # Takes it back.
            self._flush_due()
        for waiter in self.journal.leave_all():
            waiter.wake()
        settling, self._settling = self._settling, []
        for settled in settling:
            settled()

    # What a wait is for

    def _use(self) -> int:
        now = self.used_ms = self._around.steady_ms()
        forgotten = self.templates.forget_unused(now)
        if forgotten:
            # Whoever waits by one of them has to ask again, because nobody looks for its keys any more.
            self._touch([template.key for template in forgotten], self.position - 1)
        return now

    def _activate(self, template: Template, ttl_ms: int | None, now: int) -> str:
        active = len(self.templates)
        refusal = self.templates.activate(template, self.journal.last.number, ttl_ms, now)
        if len(self.templates) > active and self.journal.has_pending:
            # What is about to be told was not looked at for it.
            self.journal.touch((template.key,), self.position - 1, self._around.wall_ms())
        return refusal

    def _interest(self, request: WaitRequest, now: int) -> tuple[str, frozenset[int]]:
        """By what somebody waits, and under which keys."""
        used = [self.templates.use(template_id, now) for template_id in request.templates]
        active = [each.template for each in used if each is not None]
        extra = set() if len(active) == len(used) else {ANYTHING}
        if request.coarse or len(active) < len(used):
            extra.update(key_id(table_key(template.entity)) for template in active)
            return "tableKey", request.keys.union(extra)
        extra.update(template.key for template in active)
        if not active:
            extra.add(ANY_FINE)
        restricted = self.budget.behind and bool(active)
        return "templateKey" if restricted else "fineKey", request.keys.union(extra)

    def _unseen(self, request: WaitRequest, since: int) -> bool:
        """Whether something was touched before a template was active: nobody knows whether it was a key of it."""
        begun = [self.templates.begun(template_id) for template_id in request.templates]
        return since < max(begun, default=0) and self.journal.is_touched(frozenset((ANYTHING,)), since)

    def _tell(self, done: Callable[[Outcome], None], kind: str, touched: bool) -> None:
        self.counters.waits_touched += touched
        self.counters.waits_stale += not touched
        done(self._outcome(kind, touched=touched, stale=not touched))

    def _outcome(self, kind: str, touched: bool = False, stale: bool = False) -> Outcome:
        return Outcome(kind, self.journal.cursor, touched, self.journal.last, stale)

    # Looking at what was appended

    def _changed(self) -> None:
        if self.over:
            return
        try:
            self._unwatch = self._around.watch(self.topic, self._changed)
        except TopicsError:
            # The stream is gone for its users.
            self.end()
            return
        if self._around.settings(self.topic) != self.settings:
            self.end()
        else:
            self._look()

    def _look(self) -> None:
        if self._reading or self.over or self.position >= self.topic.head:
            return
        self._reading = True
        spec = ReadSpec(position=Position(self.position), max_records=_BATCH)
        try:
            self._around.read(self.topic, spec, self._got)
        except TopicsError as error:
            self._got(error)

    def _got(self, outcome: StreamSlice | TopicsError) -> None:
        self._reading = False
        if self.over:
            return
        before = self.position
        if isinstance(outcome, TopicsError):
            self.position = self.topic.head
            self._touch_all()
            return
        self.position = outcome.position.counter
        if outcome.tombstone is not None:
            self._touch_all()
        entries = _decode(outcome.body)
        self._look_at(entries, before)
        if self.position < self.topic.head:
            self._around.later(0.0, self._look)
        else:
            self._settle()

    def _look_at(self, entries: list[Any], before: int) -> None:
        counters = self.counters
        counters.batches += 1
        counters.entries += self.position - before
        self.budget.begin(self.lag, self._around.steady_ms())
        skip = self.settings.on_missing_before == "skipBefore"
        keys: set[int] = set()
        for change in entries:
            entity = change_entity(change)
            if entity is None:
                continue
            keys.add(ANYTHING)
            touched = touched_by(change, self.templates.by_entity.get(entity, []), skip)
            keys.add(touched.table)
            counters.tables += 1
            coarse = touched.coarse
            if self.budget.spend(len(touched.fine)):
                keys.update(touched.fine)
                counters.fine += len(touched.fine)
            else:
                counters.dropped += len(touched.fine)
                coarse = self.templates.by_entity[entity]
            if coarse:
                keys.update(template.key for template in coarse)
                keys.add(ANY_FINE)
        if keys:
            self._touch(keys, self.position - 1)
        else:
            counters.batches_without += 1

    def _touch(self, keys: Any, entry: int) -> None:
        self.journal.touch(keys, entry, self._around.wall_ms())
        self._flush_later()

    def _touch_all(self) -> None:
        """Something is not known: whoever waits looks again."""
        self.journal.touch_all(self._around.wall_ms())
        self._flush_later()

    # Telling

    def _flush_later(self) -> None:
        if self._flush_due is None and not self.over:
            self._flush_due = self._around.later(self.settings.touch_coalesce_window_ms / 1000, self._flush)

    def _flush(self) -> None:
        self._flush_due = None
        if self.over or not self.journal.has_pending:
            return
        woken = self.journal.flush(self._around.wall_ms())
        self.counters.flushes += 1
        self.counters.woken += len(woken)
        self._wake(woken)
        self._settle()

    def _wake(self, woken: list[Waiter]) -> None:
        """Tells some of them now, and the rest when others had their turn."""
        for waiter in woken[:_WAKES]:
            waiter.wake()
        rest = woken[_WAKES:]
        if rest:
            self._around.later(0.0, lambda: self._wake(rest))

    def _settle(self) -> None:
        if self._settling and self.is_settled:
            settling, self._settling = self._settling, []
            for settled in settling:
                settled()


def _nothing() -> None:
    """There is nothing to take back."""
