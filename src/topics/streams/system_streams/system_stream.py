"""System stream: a stream that only the server writes, created when it is missing and found again after a restart.

A user's stream that got the same name before it was reserved is left alone. Entries of a system stream are validated,
logged, sealed and evicted as all others are.
"""

import logging
from collections.abc import Callable, Sequence

from topics.engine.append import creation_body, make_topic
from topics.engine.engine import Engine
from topics.engine.results import AppendResult, PutResult
from topics.engine.topic import Topic
from topics.engine.topic_admin import Put
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.control_frames import encode_config_change
from topics.log.frame import FrameKind
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.topic_config import TopicConfig, encode_config
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
        topic = self._engine.core.directory.find(self._name)
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
        engine, core = self._engine, self._engine.core
        try:
            topic = make_topic(core, self._name, self._config)
            core.path.check(topic)
        except TopicsError as error:
            done(error)
            return
        part = StreamPart(JSON_TYPE, renewed_ms=topic.created_ts, contract=self._description.raw)
        engine.streams.adopt(topic, part)

        def applied(timing: CommitTiming) -> None:
            core.add_topic(topic)
            self._topic = topic
            done(None)

        def failed(error: TopicsError) -> None:
            core.directory.discard(topic)
            done(error)

        frame = (FrameKind.STREAM_CREATE, encode_creation(part, creation_body(core, topic)), b"")
        core.path.log(Change(core.path, topic, (frame,), applied, failed), Gate.SYNC)

    def _configure(self, topic: Topic, done: Done) -> None:
        """Retention is what the settings say now, not what they said when the stream was made."""
        core = self._engine.core
        if topic.staged_config == self._config:
            done(None)
            return

        def put(outcome: PutResult | TopicsError) -> None:
            done(outcome if isinstance(outcome, TopicsError) else None)

        try:
            core.path.check(topic)
        except TopicsError as error:
            done(error)
            return
        topic.staged_config = self._config
        body = encode_config_change(topic.staged_head, encode_config(self._config))
        core.path.log(Put(core, topic, (FrameKind.CONFIG, body, b""), self._config, put), Gate.SYNC)
