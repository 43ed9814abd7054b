"""System stream: a stream that only the server writes, created when it is missing and found again after a restart.

A user's stream that got the same name before it was reserved is left alone. Entries of a system stream are validated,
logged, sealed and evicted as all others are.
"""

import logging
from collections.abc import Callable, Sequence

from topics.engine.engine import Engine
from topics.engine.results import AppendResult, PutResult
from topics.engine.topic import Topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import FrameKind
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import TopicConfig
from topics.schema.contract import Contract
from topics.streams.chunked_validation import Description
from topics.streams.lifecycle import is_own_stream
from topics.streams.stream_frames import StreamPart, encode_creation
from topics.streams.stream_state import JSON_TYPE

_log = logging.getLogger(__name__)

Done = Callable[[TopicsError | None], None]


class SystemStream:
    def __init__(self, engine: Engine, name: str, contract: Contract, config: TopicConfig) -> None:
        self._engine = engine
        self._name = name
        self._description = Description(contract)
        self._config = config
        self._topic: Topic | None = None

    @property
    def topic(self) -> Topic | None:
        """The stream, once it is there."""
        topic = self._topic
        return topic if topic is not None and topic.created else None

    def open(self, done: Done) -> None:
        """Finds the stream or makes it, and gives it its config. May be called again after a failure."""
        topic = self._engine.find(self._name)
        if topic is None:
            self._create(done)
        elif not is_own_stream(topic):
            _log.warning("a stream has the name of a system stream, which is not written", extra={"stream": topic.name})
        else:
            self._topic = topic
            self._configure(topic, done)

    def write(self, records: Sequence[Record], done: Done) -> None:
        """Appends some entries, all of them or none."""
        engine, topic = self._engine, self.topic
        assert topic is not None, "a stream is written once it is open"

        def written(outcome: AppendResult | TopicsError) -> None:
            done(outcome if isinstance(outcome, TopicsError) else None)

        try:
            admitted = engine.streams.admit(topic, lambda: records, False) or records
            engine.write(topic, Batch(records=admitted), written)
        except TopicsError as error:
            done(error)

    def _create(self, done: Done) -> None:
        engine = self._engine
        try:
            topic = engine.new_topic(self._name, self._config)
            engine.write_path.check(topic)
        except TopicsError as error:
            done(error)
            return
        part = StreamPart(JSON_TYPE, renewed_ms=topic.created_ts, contract=self._description.raw)
        engine.streams.adopt(topic, part)

        def applied(timing: CommitTiming) -> None:
            engine.add_topic(topic)
            self._topic = topic
            done(None)

        def failed(error: TopicsError) -> None:
            engine.release_name(topic)
            done(error)

        frame = (FrameKind.STREAM_CREATE, encode_creation(part, engine.creation_body(topic)), b"")
        engine.write_path.log(Change(engine.write_path, topic, (frame,), applied, failed), Gate.SYNC)

    def _configure(self, topic: Topic, done: Done) -> None:
        """Retention is what the settings say now, not what they said when the stream was made."""
        if topic.staged_config == self._config:
            done(None)
            return

        def put(outcome: PutResult | TopicsError) -> None:
            done(outcome if isinstance(outcome, TopicsError) else None)

        try:
            self._engine.put_config(topic, self._config, put)
        except TopicsError as error:
            done(error)
