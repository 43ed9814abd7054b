"""Invalidation (also known as: touch): notifies clients that wait for keys of changed rows of a state-protocol stream.

The reader of a stream starts with the first request and reads what is appended from then on, by any protocol. Nothing
survives a restart: the epoch then changes, and a client with an old cursor must query again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.model.errors import InvalidRequestError, TopicsError
from topics.schema.documents import decode
from topics.schema.invalidation_keys import (
    Activation,
    Template,
    WaitRequest,
    change_entity,
    touched_by,
)
from topics.schema.profiles.state_protocol import StateProtocol, Touch, TouchTemplates
from topics.streams.append import Later
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_state import Position, contract_of
from topics.system.fair_scheduler import Task
from topics_protocol.touch_keys import key_id, table_key

# Active templates: fine keys are computed for these only.

_MINUTE_MS = 60_000


class Active:
    __slots__ = ("since", "template", "ttl_ms", "used_ms")

    def __init__(self, template: Template, since: int, ttl_ms: int, used_ms: int) -> None:
        self.template = template
        self.since = since
        """The generation after which changes are examined for it."""
        self.ttl_ms = ttl_ms
        self.used_ms = used_ms


class ActiveTemplates:
    """Times are milliseconds of a monotonic clock."""

    def __init__(self, limits: TouchTemplates) -> None:
        self._limits = limits
        self._by_id: dict[str, Active] = {}
        self.by_entity: dict[str, list[Template]] = {}
        self._activations: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._by_id)

    def activate(self, template: Template, since: int, ttl_ms: int | None, now_ms: int) -> str:
        """Activates a template or extends its use. Returns the reason for a refusal, or an empty text."""
        known = self._by_id.get(template.id)
        ttl_ms = ttl_ms or self._limits.default_inactivity_ttl_ms
        if known is not None:
            if known.template != template:
                return "another encoding of its fields is active"
            known.used_ms, known.ttl_ms = now_ms, max(known.ttl_ms, ttl_ms)
            return ""
        refusal = self._refusal(template, now_ms)
        if not refusal:
            self._activations.append(now_ms)
            self._by_id[template.id] = Active(template, since, ttl_ms, now_ms)
            self.by_entity.setdefault(template.entity, []).append(template)
        return refusal

    def _refusal(self, template: Template, now_ms: int) -> str:
        limits, activations = self._limits, self._activations
        if len(self._by_id) >= limits.max_active_templates_per_stream:
            return "the stream has as many templates as it may have"
        if len(self.by_entity.get(template.entity, ())) >= limits.max_active_templates_per_entity:
            return "the entity has as many templates as it may have"
        while activations and now_ms - activations[0] >= _MINUTE_MS:
            activations.popleft()
        if limits.activation_rate_limit_per_minute and len(activations) >= limits.activation_rate_limit_per_minute:
            return "too many templates were activated within a minute"
        return ""

    def use(self, template_id: str, now_ms: int) -> Active | None:
        """Records that a client waits by a template; None if it is not active."""
        active = self._by_id.get(template_id)
        if active is not None:
            active.used_ms = now_ms
        return active

    def begun(self, template_id: str) -> int:
        """The generation after which changes are examined for a template; 0 if it is not active."""
        active = self._by_id.get(template_id)
        return active.since if active is not None else 0

    def forget_unused(self, now_ms: int) -> list[Template]:
        """Deactivates and returns the templates that were unused for their lifetime."""
        unused = [active.template for active in self._by_id.values() if now_ms - active.used_ms >= active.ttl_ms]
        for template in unused:
            del self._by_id[template.id]
            others = self.by_entity[template.entity]
            others.remove(template)
            if not others:
                del self.by_entity[template.entity]
        return unused


# The journal: recently invalidated keys and their waiters, in memory, by generations.
#
# Invalidations are collected for a moment and then published together as a generation. A cursor is the journal's epoch
# and the last generation that a client knows. For each key the journal has the last generation that invalidated it. An
# unknown or dropped key counts as invalidated: a client may query again unnecessarily, but misses no change.
#
# Waiters are found by their keys, so a generation costs what it invalidates and wakes, however many clients wait.

NOW = "now"
ANY_FINE = -1
"""Invalidated when fine keys are unknown, for waiters that do not name the templates of their keys."""
ANYTHING = -2
"""Invalidated by every change, for waiters with an unknown template."""


class Generation(NamedTuple):
    """Invalidations that were published together, and when."""

    number: int = 0
    last_entry: int = -1
    """The last entry of the stream that it covers."""
    begun_ms: int = 0
    told_ms: int = 0


class Waiter:
    """A waiting client; `wake` is called once."""

    __slots__ = ("keys", "wake")

    def __init__(self, keys: frozenset[int], wake: Callable[[], None]) -> None:
        self.keys = keys
        self.wake = wake


class Journal:
    def __init__(self, epoch: str, keys_max: Callable[[], int]) -> None:
        self.epoch = epoch
        self.last = Generation()
        self._keys_max = keys_max
        self._touched: dict[int, int] = {}
        """Key to the last generation that invalidated it, in the order of generations."""
        self._floor = 0
        """Up to this generation the invalidated keys are no longer known."""
        self._pending: set[int] = set()
        self._all = False
        """Whether every key counts as invalidated, because entries were lost or there were too many."""
        self._begun_ms = 0
        self._last_entry = -1
        self._waiting: dict[int, set[Waiter]] = {}
        self.waiters = 0
        self.overflows = 0

    @property
    def cursor(self) -> str:
        return f"{self.epoch}:{self.last.number}"

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def size(self) -> int:
        """The number of keys in memory, published or not."""
        return len(self._touched) + len(self._pending)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending) or self._all

    # Touching

    def touch(self, keys: Iterable[int], entry: int, now_ms: int) -> None:
        """Collects keys that `entry` invalidates."""
        if not self.has_pending:
            self._begun_ms = now_ms
        if not self._all:
            self._pending.update(keys)
            if len(self._pending) > self._keys_max():
                self.touch_all(now_ms)
        self._last_entry = max(self._last_entry, entry)

    def touch_all(self, now_ms: int) -> None:
        """Invalidates every key."""
        if not self.has_pending:
            self._begun_ms = now_ms
        self.overflows += 1
        self._all = True
        self._pending.clear()

    def flush(self, now_ms: int) -> list[Waiter]:
        """Publishes the collected keys as a generation and returns the waiters to wake."""
        number = self.last.number + 1
        self.last = Generation(number, self._last_entry, self._begun_ms, now_ms)
        if self._all:
            self._floor = number
            self._touched.clear()
            woken = {waiter for waiters in self._waiting.values() for waiter in waiters}
        else:
            woken = set()
            # By a library function, because there may be a hundred thousand.
            for key in self._touched.keys() & self._pending:
                del self._touched[key]
            self._touched.update(dict.fromkeys(self._pending, number))
            for key in self._waiting.keys() & self._pending:
                woken |= self._waiting[key]
            self._forget()
        self._pending, self._all = set(), False
        for waiter in woken:
            self.leave(waiter)
        return list(woken)

    def _forget(self) -> None:
        # Removing them one by one from the front would skip all earlier free slots each time.
        for key in list(islice(self._touched, max(len(self._touched) - self._keys_max(), 0))):
            self._floor = max(self._floor, self._touched.pop(key))

    # Waiting

    def read_cursor(self, cursor: str) -> int | None:
        """The generation of a cursor; None if its epoch or generation is unknown."""
        if cursor == NOW:
            return self.last.number
        epoch, colon, number = cursor.partition(":")
        if not colon or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise InvalidRequestError("wait.cursor: is neither `now` nor a cursor of this route", field="wait.cursor")
        generation = int(number)
        return generation if epoch == self.epoch and generation <= self.last.number else None

    def is_touched(self, keys: frozenset[int], since: int) -> bool:
        """Whether one of the keys was invalidated after a generation, as far as known."""
        if since < self._floor:
            return True
        touched = self._touched
        return since < self.last.number and any(touched.get(key, 0) > since for key in keys)

    def join(self, waiter: Waiter) -> None:
        self.waiters += 1
        for key in waiter.keys:
            self._waiting.setdefault(key, set()).add(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Removes a waiter. Idempotent."""
        there = False
        for key in waiter.keys:
            waiters = self._waiting.get(key)
            if waiters is not None and waiter in waiters:
                there = True
                waiters.discard(waiter)
                if not waiters:
                    del self._waiting[key]
        self.waiters -= there

    def leave_all(self) -> list[Waiter]:
        """Removes and returns all waiters."""
        everybody = list({waiter for waiters in self._waiting.values() for waiter in waiters})
        self._waiting, self.waiters = {}, 0
        return everybody


# Rate limit of fine keys: per batch, and per second with a burst reserve (token bucket).


class FineKeyBudget:
    def __init__(self, settings: Touch, now_ms: int) -> None:
        self._settings = settings
        self._tokens = float(settings.fine_burst_tokens)
        self._filled_ms = now_ms
        self._left = 0
        self.behind = False
        """Whether the backlog is so long that only a reserve of fine keys is computed."""

    @property
    def mode(self) -> str:
        if not self.behind:
            return "fine"
        return "restricted" if self._settings.lag_reserved_fine_touch_budget_per_batch else "coarseOnly"

    def begin(self, lag: int, now_ms: int) -> None:
        """Records an examined batch and the number of entries after it."""
        settings = self._settings
        passed = max(now_ms - self._filled_ms, 0)
        self._filled_ms = now_ms
        filled = self._tokens + passed * settings.fine_tokens_per_second / 1000
        self._tokens = min(filled, float(settings.fine_burst_tokens))
        if lag >= max(settings.lag_degrade_fine_touches_at_source_offsets, 1):
            self.behind = True
        elif lag <= settings.lag_recover_fine_touches_at_source_offsets:
            self.behind = False
        per_batch = settings.fine_touch_budget_per_batch
        if self.behind:
            per_batch = min(per_batch, settings.lag_reserved_fine_touch_budget_per_batch)
        self._left = min(per_batch, int(self._tokens))

    @property
    def left(self) -> int:
        """The number of keys of this batch that may still be reported."""
        return self._left

    def spend(self, keys: int) -> None:
        """Records the number of reported keys."""
        self._left -= keys
        self._tokens -= keys


_BATCH = 256
"""Entries examined per turn of the loop."""
_WAKES = 256
"""Waiters notified per turn of the loop."""

Read = Callable[[Topic, ReadSpec, Callable[[StreamSlice | TopicsError], None]], None]
Watch = Callable[[Topic, Callable[[], None]], Callable[[], None]]


class Surroundings(NamedTuple):
    """The services of the server for invalidation."""

    read: Read
    watch: Watch
    later: Later
    settings: Callable[[Topic], Touch | None]
    """The current touch settings of a stream; None if off."""
    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]
    run: Callable[[Task, Topic], None]
    """Runs long work in turns with others."""
    keys_max: Callable[[], int]
    """The maximum number of keys of a journal, given the total of all journals."""


class Outcome(NamedTuple):
    """The result of a wait. It is stale if the epoch has changed, or if touches are now off."""

    kind: str
    cursor: str
    touched: bool
    generation: Generation
    stale: bool = False


class Counters:
    """Counters since the invalidation of the stream started."""

    def __init__(self) -> None:
        self.entries = self.batches = self.batches_without = 0
        self.tables = self.fine = self.dropped = self.flushes = self.woken = 0
        self.waits_touched = self.waits_over = self.waits_stale = 0


class StreamInvalidation:
    def __init__(self, topic: Topic, settings: Touch, epoch: str, around: Surroundings) -> None:
        self.topic = topic
        self.settings = settings
        self.journal = Journal(epoch, lambda: min(settings.memory.pending_max_keys, around.keys_max()))
        self.templates = ActiveTemplates(settings.templates)
        self.budget = FineKeyBudget(settings, around.steady_ms())
        self.counters = Counters()
        self.used_ms = around.steady_ms()
        self.position = topic.head
        """The last examined entry of the stream."""
        self._around = around
        self._reading = False
        """Whether entries are being read or examined."""
        self._examined: set[int] = set()
        """The keys touched by the entries being examined."""
        self._flush_due: Callable[[], None] | None = None
        self._catch_up_waiters: list[Callable[[], None]] = []
        self._unwatch = around.watch(topic, self._changed)
        self.over = False
        """Whether it has ended; the next request starts another epoch."""

    # Requests

    def activate(self, request: Activation) -> list[tuple[Template, str]]:
        """Activates templates. Returns the reason of refusal for each, empty if it is active."""
        now = self._use()
        return [(template, self._activate(template, request.inactivity_ttl_ms, now)) for template in request.templates]

    def wait(self, request: WaitRequest, done: Callable[[Outcome], None]) -> Callable[[], Outcome] | None:
        """Calls `waiter` when a key was touched after the cursor.

        If one was touched already, it is called immediately and None is returned. Otherwise the result is a function
        that ends the wait and returns the current state.
        """
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
            self._notify(done, kind, touched=True)
            return None
        waiter = Waiter(keys, lambda: self._notify(done, kind, touched=not self.over))
        self.journal.join(waiter)

        def end() -> Outcome:
            self.journal.leave(waiter)
            self.counters.waits_over += 1
            return self._outcome(kind)

        return end

    def when_caught_up(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when all current entries of the stream are published. Returns a function that cancels it."""
        self._use()
        if self.is_caught_up:
            callback()
            return _nothing
        self._catch_up_waiters.append(callback)
        return lambda: self._catch_up_waiters.remove(callback) if callback in self._catch_up_waiters else None

    @property
    def is_caught_up(self) -> bool:
        return self.position >= self.topic.head and not self.journal.has_pending

    @property
    def lag(self) -> int:
        return max(self.topic.head - self.position, 0)

    def end(self) -> None:
        """Ends all waits: touches are off, or the stream is deleted."""
        if self.over:
            return
        self.over = True
        self._unwatch()
        if self._flush_due is not None:
            # Cancels it.
            self._flush_due()
        for waiter in self.journal.leave_all():
            waiter.wake()
        waiters, self._catch_up_waiters = self._catch_up_waiters, []
        for callback in waiters:
            callback()

    # Templates and keys of a wait

    def _use(self) -> int:
        now = self.used_ms = self._around.steady_ms()
        forgotten = self.templates.forget_unused(now)
        if forgotten:
            # Waiters by one of them must query again, because its keys are no longer computed.
            self._touch([template.key for template in forgotten], self.position - 1)
        return now

    def _activate(self, template: Template, ttl_ms: int | None, now: int) -> str:
        active = len(self.templates)
        refusal = self.templates.activate(template, self.journal.last.number, ttl_ms, now)
        if len(self.templates) > active and self.journal.has_pending:
            # Changes that are about to be notified were not checked for it.
            self.journal.touch((template.key,), self.position - 1, self._around.wall_ms())
        if len(self.templates) > active and self._reading:
            # Entries being examined may not have been checked for it either.
            self._examined.add(template.key)
        return refusal

    def _interest(self, request: WaitRequest, now: int) -> tuple[str, frozenset[int]]:
        """The conditions of a wait, and its keys."""
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
        """Returns whether something was touched before a template was active, so that it may have been one of its
        keys."""
        begun = [self.templates.begun(template_id) for template_id in request.templates]
        return since < max(begun, default=0) and self.journal.is_touched(frozenset((ANYTHING,)), since)

    def _notify(self, done: Callable[[Outcome], None], kind: str, touched: bool) -> None:
        self.counters.waits_touched += touched
        self.counters.waits_stale += not touched
        done(self._outcome(kind, touched=touched, stale=not touched))

    def _outcome(self, kind: str, touched: bool = False, stale: bool = False) -> Outcome:
        return Outcome(kind, self.journal.cursor, touched, self.journal.last, stale)

    # Examination of appended entries

    def _changed(self) -> None:
        if self.over:
            return
        try:
            self._unwatch = self._around.watch(self.topic, self._changed)
        except TopicsError:
            # The stream no longer exists for clients.
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
        if self.over:
            return
        if isinstance(outcome, TopicsError):
            self._reading = False
            self.position = self.topic.head
            self._touch_all()
            return
        if outcome.tombstone is not None:
            self._touch_all()
        self._around.run(self._examine(decode(outcome.body), outcome.position.counter), self.topic)

    def _examine(self, entries: list[Any], position: int) -> Task:
        """Finds the keys that entries touch, under fair scheduling. They are reported together, and the position
        moves."""
        counters = self.counters
        counters.batches += 1
        counters.entries += position - self.position
        self.budget.begin(max(self.topic.head - position, 0), self._around.steady_ms())
        self._examined = set()
        for change in entries:
            yield from self._examine_one(change)
            if self.over:
                return
        self._reading = False
        self.position = position
        keys, self._examined = self._examined, set()
        if keys:
            self._touch(keys, position - 1)
        else:
            counters.batches_without += 1
        if position < self.topic.head:
            self._around.later(0.0, self._look)
        else:
            self._notify_caught_up()

    def _examine_one(self, change: Any) -> Task:
        entity = change_entity(change)
        if entity is None:
            return
        counters, keys = self.counters, self._examined
        skip = self.settings.on_missing_before == "skipBefore"
        # A copy, because templates may change meanwhile.
        templates = list(self.templates.by_entity.get(entity, ()))
        touched = yield from touched_by(change, templates, skip, self.budget.left)
        keys.update((ANYTHING, touched.table))
        keys.update(touched.fine)
        counters.tables += 1
        counters.fine += len(touched.fine)
        counters.dropped += touched.dropped
        self.budget.spend(len(touched.fine))
        if touched.coarse:
            keys.update([template.key for template in touched.coarse])
            keys.add(ANY_FINE)
        yield None

    def _touch(self, keys: Any, entry: int) -> None:
        self.journal.touch(keys, entry, self._around.wall_ms())
        self._flush_later()

    def _touch_all(self) -> None:
        """Invalidates everything, because entries were lost or could not be read."""
        self.journal.touch_all(self._around.wall_ms())
        self._flush_later()

    # Notification

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
        self._notify_caught_up()

    def _wake(self, woken: list[Waiter]) -> None:
        """Notifies some waiters now, and the rest in later turns of the loop."""
        for waiter in woken[:_WAKES]:
            waiter.wake()
        rest = woken[_WAKES:]
        if rest:
            self._around.later(0.0, lambda: self._wake(rest))

    def _notify_caught_up(self) -> None:
        if self._catch_up_waiters and self.is_caught_up:
            waiters, self._catch_up_waiters = self._catch_up_waiters, []
            for callback in waiters:
                callback()


def _nothing() -> None:
    """Does nothing."""


# Invalidation of all streams with requests.

_SWEEP_S = 60.0
_KEYS_MAX = 1_000_000
"""The maximum number of keys in all journals, about 100 bytes each."""
_KEYS_MIN = 64


class InvalidationService:
    def __init__(self, engine: Engine, read: Read, watch: Watch, later: Later) -> None:
        self._engine = engine
        self._later = later
        self._streams: dict[Topic, StreamInvalidation] = {}
        self._around = Surroundings(
            read, watch, later, touch_settings, engine.wall, engine.steady,
            lambda task, topic: engine.run_task(task, topic, short_units=True),
            lambda: max(_KEYS_MAX // max(len(self._streams), 1), _KEYS_MIN),
        )  # fmt: skip
        self._sweeping: Callable[[], None] | None = None
        engine.topic_removed.subscribe(self._topic_deleted)

    def __iter__(self) -> Iterator[StreamInvalidation]:
        """The touches of a request."""
        return iter(self._streams.values())

    def of(self, topic: Topic) -> StreamInvalidation | None:
        """The invalidation of a stream, started by the first request; None if off."""
        settings = touch_settings(topic)
        known = self._streams.get(topic)
        if known is not None and (known.over or known.settings != settings):
            known.end()
            del self._streams[topic]
            known = None
        if settings is None:
            return None
        if known is None:
            known = StreamInvalidation(topic, settings, self._engine.entropy.token(8).hex(), self._around)
            self._streams[topic] = known
            if self._sweeping is None:
                self._sweeping = self._later(_SWEEP_S, self._sweep)
        return known

    def _topic_deleted(self, topic: Topic) -> None:
        touch = self._streams.pop(topic, None)
        if touch is not None:
            touch.end()

    def _sweep(self) -> None:
        """Stops the invalidation of streams without requests; a later request starts another epoch."""
        now = self._engine.steady()
        for topic, touch in list(self._streams.items()):
            unused_ms = now - touch.used_ms
            if not touch.journal.waiters and unused_ms >= touch.settings.templates.default_inactivity_ttl_ms:
                touch.end()
                del self._streams[topic]
        self._sweeping = self._later(_SWEEP_S, self._sweep) if self._streams else None


def touch_settings(topic: Topic) -> Touch | None:
    """The touch settings of a stream; None if off."""
    profile = contract_of(topic).profile
    return profile.touch_settings if isinstance(profile, StateProtocol) else None
