"""Data folders for tests of their readers: an engine on a fake disk, sealed as a server would seal."""

from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.errors import TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import TopicConfigPatch
from topics.system.clock import Clock
from topics.testing import FakeDisk, ManualClock, SeededEntropy

LAYOUT = Layout("data", "cold")


class Folder:
    """An engine and its disk. `seal` moves appended records into segments and publishes the catalog."""

    def __init__(
        self, fs: FileSystem | None = None, clock: Clock | None = None, layout: Layout = LAYOUT, **options: object
    ) -> None:
        self.disk = fs if fs is not None else FakeDisk()
        self.clock = clock if clock is not None else ManualClock()
        self.layout = layout
        settings = {"wal_shards": 1, "wal_file_bytes": 65_536, "track_removals": True, **options}
        self.engine = Engine.recover(
            self.disk,
            EngineOptions(data_dir=layout.root, cold_dir=layout.cold_root, **settings),  # type: ignore[arg-type]
            self.clock,
            SeededEntropy(1),
            boot_id="a",
        )

    def put(self, name: str, **config: object) -> None:
        self._done(lambda done: self.engine.put_topic(name, TopicConfigPatch(**config), done))  # type: ignore[arg-type]

    def append(self, name: str, *records: object, node: str | None = None) -> None:
        batch = [record if isinstance(record, Record) else Record.of(record) for record in records]
        self._done(lambda done: self.engine.append(name, Batch(records=batch, node=node), done))

    def delete(self, name: str, before_seq: int | None = None, tag: str | None = None) -> None:
        selector = DeleteSelector(before_seq, TagMatch(tag) if tag is not None else None)
        self._done(lambda done: self.engine.delete_records(name, selector, done))

    def drop(self, name: str) -> None:
        self._done(lambda done: self.engine.drop_topic(name, False, done))

    def seal(self, *names: str) -> None:
        for name in names or tuple(self.engine.core.directory.resident):
            topic = self.engine.core.directory.load(name)
            self.engine.core.before_change(topic)
            self.engine.sealer.cut(topic)
        self.checkpoint()

    def relocate(self, name: str) -> None:
        self.engine.run_job(self.engine.housekeeper.relocate(self.engine.core.directory.load(name)))
        self.checkpoint()

    def checkpoint(self) -> None:
        outcome: list[bool] = []
        self.engine.run_job(self.engine.checkpointer.job(then=outcome.append))
        assert outcome == [True]

    def diff(self, name: str, from_seq: int = 0) -> list[dict[str, object]]:
        """Every record that a reader over HTTP gets, after any losses."""
        found: list[dict[str, object]] = []
        while True:
            request = ReadRequest(from_seq=from_seq, limit=1000, include_tags=True)
            answer = self.engine.read_now(name, request)
            found += answer.records()
            if answer.caught_up:
                return found
            from_seq = answer.next_from_seq

    def _done(self, start: object) -> None:
        answers: list[object] = []
        start(answers.append)  # type: ignore[operator]
        (answer,) = answers
        if isinstance(answer, TopicsError):
            raise answer
