"""The sweeps over a queue's life can fail: each of these mistakes, planted into the engine, breaks a promise."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.crash import queue_scenarios
from tests.crash.queue_scenarios import Scenario
from tests.crash.queue_sweeps import sweep_stops
from topics.engine.topic import Topic
from topics.engine.write_path import Gate, WritePath
from topics.log.commit_requests import AT_ONCE
from topics.log.frame import FrameKind
from topics.log.group_commit import Shard
from topics.model.topic_config import Durability, TopicType
from topics.queues import dispatch, queue_state
from topics.queues.dead_letters import Departure, Mover
from topics.queues.queue_frames import QueuePart, encode_part
from topics.queues.queue_state import QueueFeature

Plant = Callable[[pytest.MonkeyPatch], None]


def a_missing_departure_is_not_made_up_for(patch: pytest.MonkeyPatch) -> None:
    whole = QueueFeature.reconcile

    def reconcile(self: QueueFeature) -> None:
        self._arrivals = []
        whole(self)

    patch.setattr(QueueFeature, "reconcile", reconcile)


def a_departure_does_not_wait_for_its_arrival(patch: pytest.MonkeyPatch) -> None:
    """Both frames are submitted at once, and no sync separates the first from the second."""
    whole = Mover._begin

    def begin(self: Mover, move: Any, finished: Any) -> None:
        if move.source.shard != move.dest.shard:
            kind, body, _ = Departure(self._core, self._feature, move, arrived=True).frames[0]
            self._core.path.note(move.source, kind, body)
            self._core.path.after_sync(move.source.shard, lambda: None)
        whole(self, move, finished)

    patch.setattr(Mover, "_begin", begin)


def leases_are_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_state, "_durable_part", lambda queue: QueuePart(queue.lease_table.dead_lettered))


def dead_letters_are_not_counted_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    whole = encode_part
    patch.setattr(
        queue_state, "encode_part", lambda part: whole(QueuePart(0, part.delayed, part.leases, part.delivered))
    )


def delays_are_not_logged(patch: pytest.MonkeyPatch) -> None:
    whole = Shard.frame

    def frame(self: Shard, kind: FrameKind, topic_id: int, head: bytes, tail: bytes = b"") -> list[bytes]:
        return [] if kind is FrameKind.DELAY else whole(self, kind, topic_id, head, tail)

    patch.setattr(Shard, "frame", frame)


def releases_are_not_logged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        dispatch.Dispatcher, "release", lambda self, queue, leases, ready_at, then=None, undone=None, failed=None: (
            queue.lease_table.release([lease.seq for lease in leases], ready_at), then and then(AT_ONCE)
        )
    )  # fmt: skip


def reasons_are_not_logged(patch: pytest.MonkeyPatch) -> None:
    whole = Shard.frame

    def frame(self: Shard, kind: FrameKind, topic_id: int, head: bytes, tail: bytes = b"") -> list[bytes]:
        return [] if kind is FrameKind.QUEUE else whole(self, kind, topic_id, head, tail)

    patch.setattr(Shard, "frame", frame)


def pauses_are_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    whole = encode_part
    patch.setattr(queue_state, "encode_part", lambda part: whole(msgspec.structs.replace(part, paused=False)))


def reasons_are_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    whole = encode_part
    patch.setattr(queue_state, "encode_part", lambda part: whole(msgspec.structs.replace(part, failures=[])))


def an_acknowledgement_is_answered_before_it_is_logged(patch: pytest.MonkeyPatch) -> None:
    whole = WritePath.waits

    def waits(self: WritePath, topic: Topic, last_seq: int, has_frames: bool, gate: Gate = Gate.CLASS) -> bool:
        # Of the operations of a queue, only acknowledgements have no seq.
        acknowledges = not last_seq and topic.config.type is TopicType.QUEUE and gate is Gate.CLASS
        return not acknowledges and whole(self, topic, last_seq, has_frames, gate)

    patch.setattr(WritePath, "waits", waits)


def deletes_do_not_end_leases(patch: pytest.MonkeyPatch) -> None:
    def deleted(self: QueueFeature, topic: Topic, before_seq: int, ranges: Any) -> None:
        """Forgets to forget."""

    patch.setattr(QueueFeature, "_deleted", deleted)


@pytest.mark.parametrize(
    ("plant", "scenario", "config"),
    [
        (a_missing_departure_is_not_made_up_for, queue_scenarios.burying, {}),
        (a_missing_departure_is_not_made_up_for, queue_scenarios.redriving, {}),
        (a_departure_does_not_wait_for_its_arrival, queue_scenarios.burying, {}),
        (leases_are_not_in_snapshots, queue_scenarios.working, {}),
        (dead_letters_are_not_counted_in_snapshots, queue_scenarios.burying, {}),
        (delays_are_not_logged, queue_scenarios.delaying, {"leases_durable": False}),
        (releases_are_not_logged, queue_scenarios.working, {}),
        (reasons_are_not_logged, queue_scenarios.failing, {}),
        (pauses_are_not_in_snapshots, queue_scenarios.touching, {}),
        (reasons_are_not_in_snapshots, queue_scenarios.failing, {}),
        (an_acknowledgement_is_answered_before_it_is_logged, queue_scenarios.working, {}),
        (deletes_do_not_end_leases, queue_scenarios.working, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_mistake_is_found(
    plant: Plant, scenario: Scenario, config: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    try:
        found = next(sweep_stops(scenario, 2, **{"durability": Durability.FSYNC, **config}), None)
    except AssertionError as error:
        found = str(error)  # Already the run without a stop shows it.
    assert found is not None
