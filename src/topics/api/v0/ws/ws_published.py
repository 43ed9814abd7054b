"""Publishes of one record each, answered together: those of one tick share a block in the log, whoever sent them.

Those that one socket sent together for one topic are a run. A run is taken, kept and answered as one, so that most of
what a publish costs is paid once for all of it. Where one of a block is not as plain as it looked, all of them are
taken one by one, as it is with appends over HTTP (`api.v0.append_fast_path`).
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from topics.api.live import RunQueue
from topics.api.v0.appends import lone_appended
from topics.api.v0.ws.ws_commands import LonePublish
from topics.api.v0.ws.ws_framing import ack_befores, ack_frame
from topics.api.v0.ws.ws_replies import Reply
from topics.core.errors import TopicsError
from topics.engine.results import AppendResult
from topics.engine.write.coalescing import Singles
from topics.http.websocket.text_frames import text_frames
from topics.wire.ws import Publish, RequestId

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Who sent a run (`api.v0.ws.ws.Session`)."""

    run_queue: RunQueue

    def give(self, run: "Run", frames: bytes) -> None: ...

    def refusal(self, error: TopicsError, request_id: RequestId) -> bytes: ...

    def take_each(self, run: "Run") -> None: ...

    def fail(self) -> None: ...


class Run(msgspec.Struct, eq=False):
    """Publishes on their way, for one topic."""

    publisher: Publisher
    commands: Sequence[LonePublish | Publish]
    texts: Sequence[bytes]
    """What they were read from."""
    reply: Reply
    started: float
    nbytes: int
    """Of the texts."""


class UnreadRuns:
    """Implements `Unread`. Each caller is the run of its record."""

    def read(self, callers: list[Run]) -> Singles:
        commands = [command for run in _runs(callers) for command in run.commands]
        keys = [command.idempotency_key for command in commands]
        records = [command.records[0] for command in commands]
        return Singles(records, None if keys.count(None) == len(keys) else keys)

    def take_each(self, callers: list[Run]) -> None:
        for run in _runs(callers):
            try:
                run.publisher.take_each(run)
            except Exception:
                _log.exception("publishes could not be taken")
                run.publisher.fail()

    def answer(self, callers: list[Run], outcome: AppendResult | TopicsError) -> None:
        answer_runs(callers, outcome)


UNREAD_RUNS = UnreadRuns()
"""The only one: the engine tells by it who is read together."""


def answer_runs(callers: list[Run], outcome: AppendResult | TopicsError) -> None:
    """Answers the publishes of one block. A run that cannot be answered does not keep the answers of the others."""
    now = callers[0].publisher.run_queue.seconds()
    runs = list(_runs(callers))
    commands = [command for run in runs for command in run.commands]
    texts, told_seqs, at = [], all([command.return_seqs for command in commands]), 0
    if isinstance(outcome, AppendResult):
        befores = ack_befores([command.request_id for command in commands])
        texts = lone_appended(outcome, befores, [now - run.started for run in callers])
    for run in runs:
        begin, at = at, at + len(run.commands)
        try:
            if isinstance(outcome, TopicsError):
                frames = b"".join([run.publisher.refusal(outcome, command.request_id) for command in run.commands])
            elif told_seqs or all([command.return_seqs for command in run.commands]):
                frames = text_frames(texts[begin:at])
            else:
                frames = b"".join(_acks(run, outcome, outcome.first_seq + begin, now))
            run.publisher.give(run, frames)
        except Exception:
            _log.exception("publishes could not be answered")


def _acks(run: Run, outcome: AppendResult, first_seq: int, now: float) -> Iterator[bytes]:
    """One by one, where not all of them are told their seqs."""
    for seq, command in enumerate(run.commands, first_seq):
        alone = msgspec.structs.replace(outcome, first_seq=seq, last_seq=seq, head_seq=seq)
        yield ack_frame(alone, command.request_id, command.return_seqs, (now - run.started) * 1000.0)


def _runs(callers: Sequence[Run]) -> Iterator[Run]:
    at = 0
    while at < len(callers):
        yield callers[at]
        at += len(callers[at].commands)
