"""Random lives of streams against the plainest model of them: lists, flags and numbers.

Between any two steps the process may be killed or a checkpoint may be taken; neither may make a difference.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.effort import effort
from tests.property.totals import all_topics, check_totals
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.model.errors import (
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    StreamConflictError,
    StreamGoneError,
    TopicNotFoundError,
    TopicsError,
)
from topics.streams.append import Appended, AppendRequest
from topics.streams.lifecycle import Created, CreateRequest, ForkFrom
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_frames import Producer
from topics.streams.stream_state import Position, offset_of, read_offset
from topics.streams.streams import inline_streams
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

NAMES = st.sampled_from(["a", "b", "c", "d/e"])
OPTIONS = EngineOptions(
    data_dir="data", wal_shards=2, wal_file_bytes=65536, segment_max_events=3, snapshot_inline_bytes=64
)


class Model:
    """A stream as anyone would describe it."""

    def __init__(self, entries: list[bytes], source: str | None) -> None:
        self.entries = entries
        self.closed = False
        self.producers: dict[str, tuple[int, int]] = {}
        self.source = source
        self.retired = False


class StreamLives(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.models: dict[str, Model] = {}
        self.count = 0
        self._open()

    def _open(self) -> None:
        self.engine = Engine.recover(self.disk, OPTIONS, self.clock, SeededEntropy(1), boot_id="a")
        self.streams = inline_streams(self.engine)

    def _ask(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        try:
            ask(answers.append)
        except TopicsError as error:
            return error
        return answers[0]

    def _value(self, length: int) -> bytes:
        self.count += 1
        return b"<%d%b>" % (self.count, b"x" * length)

    @rule(name=NAMES, with_body=st.booleans())
    def create(self, name: str, with_body: bool) -> None:
        body = self._value(0) if with_body else b""
        answer = self._ask(
            lambda done: self.streams.create(name, CreateRequest(content_type="text/plain", body=body), done)
        )
        known = self.models.get(name)
        if known is None:
            assert isinstance(answer, Created) and answer.created
            self.models[name] = Model([body] if body else [], None)
        elif known.retired or known.closed or known.source is not None:
            assert isinstance(answer, StreamConflictError)
        else:
            assert isinstance(answer, Created) and not answer.created

    @rule(name=NAMES, source=NAMES, data=st.data())
    def fork(self, name: str, source: str, data: st.DataObject) -> None:
        if name in self.models or name == source:
            return
        origin = self.models.get(source)
        at = data.draw(st.integers(0, len(origin.entries))) if origin is not None else 0
        offset = None
        if origin is not None and not origin.retired:
            offset = offset_of(self.streams.topic(source), Position(at))
        request = CreateRequest(fork=ForkFrom(source, offset))
        answer = self._ask(lambda done: self.streams.create(name, request, done))
        if origin is None:
            assert isinstance(answer, TopicNotFoundError)
        elif origin.retired:
            assert isinstance(answer, StreamConflictError)
        else:
            assert isinstance(answer, Created) and answer.created
            self.models[name] = Model(origin.entries[:at], source)

    @rule(name=NAMES, length=st.integers(0, 30), close=st.sampled_from([False] * 9 + [True]))
    def append(self, name: str, length: int, close: bool) -> None:
        value = self._value(length)
        request = AppendRequest(body=value, content_type="text/plain", close=close)
        answer = self._ask(lambda done: self.streams.append(name, request, done))
        if self._refused(name, answer):
            return
        assert isinstance(answer, Appended) and answer.closed == close
        model = self.models[name]
        model.entries = [*model.entries, value]
        model.closed = close

    @rule(name=NAMES, producer=st.sampled_from("pq"), epoch=st.integers(0, 2), seq=st.integers(0, 4))
    def produce(self, name: str, producer: str, epoch: int, seq: int) -> None:
        value = self._value(0)
        request = AppendRequest(body=value, content_type="text/plain", producer=Producer(producer, epoch, seq))
        answer = self._ask(lambda done: self.streams.append(name, request, done))
        model = self.models.get(name)
        known = model.producers.get(producer) if model is not None else None
        repeated = known is not None and epoch == known[0] and seq <= known[1]
        if model is not None and model.closed and not model.retired and repeated:
            assert isinstance(answer, Appended) and answer.duplicate
            return
        if self._refused(name, answer):
            return
        assert model is not None
        if known is not None and epoch < known[0]:
            assert isinstance(answer, ProducerFencedError)
        elif repeated:
            assert isinstance(answer, Appended) and answer.duplicate
        elif ((known is None or epoch > known[0]) and seq == 0) or (known is not None and (epoch, seq - 1) == known):
            assert isinstance(answer, Appended) and not answer.duplicate
            model.entries = [*model.entries, value]
            model.producers[producer] = (epoch, seq)
        else:
            assert isinstance(answer, TopicsError)
            assert isinstance(answer, ProducerGapError) or (known is not None and epoch > known[0])

    def _refused(self, name: str, answer: Any) -> bool:
        model = self.models.get(name)
        if model is None:
            assert isinstance(answer, TopicNotFoundError)
        elif model.retired:
            assert isinstance(answer, StreamGoneError)
        elif model.closed:
            assert isinstance(answer, StreamClosedError)
        else:
            return False
        return True

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        answer = self._ask(lambda done: self.streams.delete(name, done))
        model = self.models.get(name)
        if model is None:
            assert isinstance(answer, TopicNotFoundError)
        elif model.retired:
            assert isinstance(answer, StreamGoneError)
        elif self._forks(name):
            model.retired = True
        else:
            self._drop(name)

    def _forks(self, name: str) -> bool:
        return any(model.source == name for model in self.models.values())

    def _drop(self, name: str) -> None:
        source = self.models.pop(name).source
        if source is not None and self.models[source].retired and not self._forks(source):
            self._drop(source)

    @rule()
    def checkpoint(self) -> None:
        self.engine.run_job(self.engine.checkpointer.job())

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.crash(Survival.EVERYTHING)
        self._open()
        self.engine.housekeeper.tick()

    @precondition(lambda self: bool(self.models))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """Any offset that a reader received leads to the entries behind it."""
        name = data.draw(st.sampled_from(sorted(self.models)))
        model = self.models[name]
        if model.retired:
            return
        at = data.draw(st.integers(0, len(model.entries)))
        topic = self.streams.topic(name)
        text = offset_of(topic, Position(at))
        assert read_offset(topic, text) == (at, 0)
        assert self._read(name, Position(at), data.draw(st.integers(1, 60))) == b"".join(model.entries[at:])

    def _read(self, name: str, position: Position, most: int) -> bytes:
        topic, found = self.streams.topic(name), b""
        while True:
            spec = ReadSpec(position=position, as_json=False, max_bytes=most)
            answers: list[StreamSlice | TopicsError] = []
            self.streams.read(topic, spec, answers.append)
            part = answers[0]
            assert isinstance(part, StreamSlice) and part.tombstone is None
            found, position = found + part.body, part.position
            if part.at_tail:
                return found

    @invariant()
    def every_stream_is_as_the_model_says(self) -> None:
        if not hasattr(self, "engine"):
            return
        for name, model in self.models.items():
            if not model.retired:
                assert self._read(name, Position(0), 1 << 20) == b"".join(model.entries)
                state = self.streams.state(self.streams.topic(name))
                assert (state is not None and state.closed) == model.closed
        assert {topic.name for topic in all_topics(self.engine)} == set(self.models)
        check_totals(self.engine)


TestStreamLives = StreamLives.TestCase
TestStreamLives.settings = effort(60, steps=40)
