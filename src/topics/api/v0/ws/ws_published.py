"""Publishes of one record each, answered together: those of one tick share a block in the log, whoever sent them."""

import logging
from typing import NamedTuple, Protocol

import msgspec

from topics.api.live import RunQueue
from topics.api.v0.appends import lone_appended
from topics.api.v0.ws.ws_framing import ack_frame, said_id
from topics.api.v0.ws.ws_replies import Reply
from topics.core.errors import TopicsError
from topics.engine import AppendResult
from topics.http.websocket.text_frames import text_frame
from topics.wire.ws import Publish, RequestId

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Who sent a publish (`api.v0.ws.ws.Session`)."""

    run_queue: RunQueue

    def give(self, published: "Published", frame: bytes) -> None: ...

    def refusal(self, error: TopicsError, request_id: RequestId) -> bytes: ...

    def settle(self) -> None: ...


class Published(NamedTuple):
    """A publish on its way."""

    publisher: Publisher
    command: Publish
    reply: Reply
    started: float
    nbytes: int


def answer_published(all_published: list[Published], outcome: AppendResult | TopicsError) -> None:
    """Answers the publishes of one block. One that cannot be answered does not keep the answers of the others."""
    publishers: dict[int, Publisher] = {}
    now = all_published[0].publisher.run_queue.seconds()
    answers: list[bytes] = []
    if isinstance(outcome, AppendResult):
        befores = [b'"op":"ack",%b' % said_id(published.command.request_id) for published in all_published]
        answers = lone_appended(outcome, befores, [now - published.started for published in all_published])
    for number, published in enumerate(all_published):
        publisher, command = published.publisher, published.command
        publishers[id(publisher)] = publisher
        try:
            if isinstance(outcome, TopicsError):
                frame = publisher.refusal(outcome, command.request_id)
            elif command.return_seqs:
                frame = text_frame(answers[number])
            else:
                seq, spent_ms = outcome.first_seq + number, (now - published.started) * 1000.0
                alone = msgspec.structs.replace(outcome, first_seq=seq, last_seq=seq, head_seq=seq)
                frame = ack_frame(alone, command.request_id, False, spent_ms)
            publisher.give(published, frame)
        except Exception:
            _log.exception("a publish could not be answered")
    for publisher in publishers.values():
        try:
            publisher.settle()
        except Exception:
            _log.exception("a socket could not go on")
