"""`touch/…`: waiting for changes of rows, queries and tables of a state-protocol stream."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from topics.api.app import Call
from topics.api.error_responses import NotFoundError
from topics.api.v1.protocol import NO_STORE, answer, read_integer
from topics.model.errors import InvalidRequestError
from topics.schema.invalidation_keys import MAX_TIMEOUT_MS, parse_activation, parse_wait
from topics.streams.invalidation import Outcome, StreamInvalidation
from topics.streams.stream_state import Position, offset_of
from topics.streams.streams import Streams

_SETTLE_MS = 30_000
_encode = msgspec.json.Encoder().encode


def activate_templates(call: Call, streams: Streams) -> None:
    touch = _touch_of(call, streams)
    request = parse_activation(call.exchange.body)
    outcomes = touch.activate(request)
    limits = touch.settings.templates
    _answer(
        call,
        {
            "activated": [
                {
                    "templateId": template.id,
                    "state": "active",
                    "activeFromTouchOffset": f"{touch.journal.epoch}:{touch.templates.begun(template.id)}",
                }
                for template, refusal in outcomes
                if not refusal
            ],
            "denied": [
                {"templateId": template.id, "reason": refusal} for template, refusal in outcomes if refusal
            ],
            "limits": {
                "maxActiveTemplatesPerStream": limits.max_active_templates_per_stream,
                "maxActiveTemplatesPerEntity": limits.max_active_templates_per_entity,
            },
        },
    )  # fmt: skip


def wait_for_touch(call: Call, streams: Streams) -> None:
    touch = _touch_of(call, streams)
    request = parse_wait(call.exchange.body)
    waiting = _Waiting(call)

    def done(outcome: Outcome) -> None:
        if waiting.over():
            _answer(call, _outcome_json(touch, outcome))

    end = touch.wait(request, done)
    if end is None:
        return
    if not request.timeout_ms:
        done(end())
    else:
        waiting.begin(request.timeout_ms / 1000, lambda: done(end()), end)


def show_touch(call: Call, streams: Streams) -> None:
    touch = _touch_of(call, streams)
    settle, timeout = call.query.get("settle", ""), call.query.get("timeoutMs", "")
    if settle not in ("", "flush"):
        raise InvalidRequestError("query settle: must be flush", field="settle")
    timeout_ms = min(read_integer("query timeoutMs", timeout), MAX_TIMEOUT_MS) if timeout else _SETTLE_MS
    if not settle or touch.is_caught_up:
        _answer(call, _meta(touch))
        return
    waiting = _Waiting(call)

    def done() -> None:
        if waiting.over():
            _answer(call, _meta(touch))

    waiting.begin(timeout_ms / 1000, done, touch.when_caught_up(done))


class _Waiting:
    """A request that is answered later: at a notification, at its timeout, or when the server stops."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._open = True
        self._timer: asyncio.TimerHandle | None = None
        self.end: Callable[[], None] = _nothing
        """Called when the server stops: answers with the current state."""

    def begin(self, seconds: float, late: Callable[[], None], take_back: Callable[[], object]) -> None:
        if not self._open:
            return
        self.end = late
        self._timer = asyncio.get_running_loop().call_later(seconds, late)
        self._call.waits.add(self)

        def gone() -> None:
            if self.over():
                take_back()

        self._call.on_disconnect(gone)

    def over(self) -> bool:
        """Closes it. Returns whether it was still open."""
        was, self._open = self._open, False
        if was and self._timer is not None:
            self._timer.cancel()
            self._call.waits.discard(self)
        return was


def _nothing() -> None:
    """Placeholder until a wait begins."""


def _touch_of(call: Call, streams: Streams) -> StreamInvalidation:
    touch = streams.invalidation.of(streams.topic(call.topic))
    if touch is None:
        raise NotFoundError("touch not enabled")
    return touch


def _answer(call: Call, document: dict[str, Any]) -> None:
    answer(call, 200, (NO_STORE,), _encode(document), "application/json")


def _outcome_json(touch: StreamInvalidation, outcome: Outcome) -> dict[str, Any]:
    generation = outcome.generation
    known = {
        "effectiveWaitKind": outcome.kind,
        "bucketMaxSourceOffsetSeq": str(generation.last_entry),
        "flushAtMs": generation.told_ms,
        "bucketStartMs": generation.begun_ms,
    }
    if not outcome.stale:
        return {"touched": outcome.touched, "cursor": outcome.cursor, **known}
    error = {"code": "stale", "message": "the cursor is of another epoch: look again, and go on from this cursor"}
    epoch = {"epoch": touch.journal.epoch, "generation": generation.number}
    return {"stale": True, "cursor": outcome.cursor, **epoch, **known, "error": error}


def _meta(touch: StreamInvalidation) -> dict[str, Any]:
    """Flat, with the names of the protocol. Counters that do not exist here are 0."""
    journal, settings, counters = touch.journal, touch.settings, touch.counters
    generation, position = journal.last, Position(touch.position)
    return {
        "mode": "memory",
        "cursor": journal.cursor,
        "epoch": journal.epoch,
        "generation": generation.number,
        "bucketMs": settings.memory.bucket_ms,
        "coalesceMs": settings.touch_coalesce_window_ms,
        "filterSize": 2**settings.memory.filter_pow2,
        "k": settings.memory.k,
        "pendingKeys": journal.pending,
        "overflowBuckets": journal.overflows,
        "activeWaiters": journal.waiters,
        "bucketMaxSourceOffsetSeq": str(generation.last_entry),
        "lastFlushAtMs": generation.told_ms,
        "settled": touch.is_caught_up,
        "coarseIntervalMs": settings.coarse_interval_ms,
        "touchCoalesceWindowMs": settings.touch_coalesce_window_ms,
        "activeTemplates": len(touch.templates),
        "lagSourceOffsets": touch.lag,
        "touchMode": touch.budget.mode,
        "walScannedThrough": offset_of(touch.topic, position),
        "scanRowsTotal": counters.entries,
        "scanBatchesTotal": counters.batches,
        "scannedButEmitted0BatchesTotal": counters.batches_without,
        "processedThroughDeltaTotal": counters.entries,
        "touchesEmittedTotal": counters.tables + counters.fine,
        "touchesTableTotal": counters.tables,
        "touchesTemplateTotal": counters.fine,
        "fineTouchesDroppedDueToBudgetTotal": counters.dropped,
        "waitTouchedTotal": counters.waits_touched,
        "waitTimeoutTotal": counters.waits_over,
        "waitStaleTotal": counters.waits_stale,
        "journalFlushesTotal": counters.flushes,
        "journalNotifyWakeupsTotal": counters.woken,
        **dict.fromkeys(_NOT_HERE, 0),
        "hotKeyFilteringEnabled": False,
        "hotTemplateFilteringEnabled": False,
    }


_NOT_HERE = (
    "flushIntervalMsMaxLast10s", "flushIntervalMsP95Last10s", "hotFineKeys", "hotTemplates", "hotFineKeysActive",
    "hotFineKeysGrace", "hotTemplatesActive", "hotTemplatesGrace", "fineWaitersActive", "coarseWaitersActive",
    "broadFineWaitersActive", "fineTouchesSkippedColdTemplateTotal", "fineTouchesSkippedColdKeyTotal",
    "fineTouchesSkippedTemplateBucketTotal", "journalNotifyWakeMsTotal", "journalNotifyWakeMsMax",
    "journalTimeoutsFiredTotal", "journalTimeoutSweepMsTotal",
)  # fmt: skip
"""Numbers of components that this server does not have."""
