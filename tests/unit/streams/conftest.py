"""How the tests of streams talk to them: synchronously, on a fake disk, with a clock that stands still."""

from typing import TypeVar

from tests.unit.conftest import open_engine
from topics.engine.engine import Engine
from topics.model.errors import TopicsError
from topics.streams.append import Appended, AppendRequest
from topics.streams.lifecycle import Created, CreateRequest, Deleted, ForkFrom
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_frames import Producer
from topics.streams.stream_state import Position
from topics.streams.streams import Streams, inline_streams
from topics.testing import FakeDisk, ManualClock, Survival

T = TypeVar("T")
START = Position(0)


def reopened(disk: FakeDisk, clock: ManualClock) -> Streams:
    """The same streams after the process was killed."""
    engine: Engine = open_engine(disk.crash(Survival.EVERYTHING), clock, wal_shards=2, segment_max_events=4)
    return inline_streams(engine)


def create(streams: Streams, name: str, content_type: str = "text/plain", **settings: object) -> Created:
    answers: list[Created | TopicsError] = []
    request = CreateRequest(content_type=content_type, **settings)  # type: ignore[arg-type]
    streams.create(name, request, answers.append)
    return _answer(answers, Created)


def fork(
    streams: Streams, name: str, source: str, offset: str | None = None, sub: int = 0, **settings: object
) -> Created:
    return create(streams, name, "", fork=ForkFrom(source, offset, sub), **settings)


def append(streams: Streams, name: str, body: bytes, content_type: str = "text/plain", **more: object) -> Appended:
    answers: list[Appended | TopicsError] = []
    request = AppendRequest(body=body, content_type=content_type, **more)  # type: ignore[arg-type]
    streams.append(name, request, answers.append)
    return _answer(answers, Appended)


def produce(streams: Streams, name: str, body: bytes, epoch: int, seq: int, **more: object) -> Appended:
    return append(streams, name, body, "text/plain", producer=Producer("p", epoch, seq), **more)


def delete(streams: Streams, name: str) -> Deleted:
    answers: list[Deleted | TopicsError] = []
    streams.delete(name, answers.append)
    return _answer(answers, Deleted)


def slice_of(streams: Streams, name: str, position: Position = START, **spec: object) -> StreamSlice:
    answers: list[StreamSlice | TopicsError] = []
    topic = streams.topic(name)
    as_json = streams.content_type(topic) == "application/json"
    streams.read(topic, ReadSpec(position=position, **{"as_json": as_json, **spec}), answers.append)  # type: ignore[arg-type]
    return _answer(answers, StreamSlice)


def text(streams: Streams, name: str) -> str:
    """Everything in a stream."""
    found, position = b"", Position(0)
    while True:
        part = slice_of(streams, name, position, as_json=False)
        found, position = found + part.body, part.position
        if part.at_tail:
            return found.decode()


def _answer(answers: list[T | TopicsError], kind: type[T]) -> T:
    (answer,) = answers
    if isinstance(answer, TopicsError):
        raise answer
    assert isinstance(answer, kind)
    return answer
