"""Random lives of streams whose schemas change, against the plainest model: the written values, and their versions.

Entries of version 2 have the member `v2`, and a lens renames that of the version before it. They come over both
protocols and through a router, forks leave where they like, and between any two steps the process may be killed, a
checkpoint taken or the log held back. Each entry keeps its side of every boundary, and every read of /v1 shows the
current version.
"""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.effort import effort
from tests.property.totals import check_totals
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest
from topics.model.errors import InvalidRequestError, TopicsError
from topics.model.records import Batch, Record
from topics.model.router_rules import RouterRules, RouterWish
from topics.streams.append import AppendRequest
from topics.streams.lifecycle import CreateRequest, ForkFrom
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_state import JSON_TYPE, Position, contract_of, offset_of
from topics.streams.streams import inline_streams
from topics.testing import FakeDisk, ManualClock, SeededEntropy, Survival

OPTIONS = EngineOptions(
    data_dir="data", wal_shards=2, wal_file_bytes=65536, segment_max_events=3, snapshot_inline_bytes=64
)
SOURCE, FIRST = "source", "s0"


class Model:
    """A stream as anyone would describe it."""

    def __init__(self, entries: list[tuple[int, int]], boundaries: list[int]) -> None:
        self.entries = entries
        """The version and the number of each."""
        self.boundaries = boundaries

    @property
    def version(self) -> int:
        return len(self.boundaries)


def update_of(name: str, version: int) -> bytes:
    member = f"v{version}"
    schema = {"type": "object", "required": [member, "k"], "properties": {member: {"type": "integer"}, "k": {}}}
    update: dict[str, Any] = {"schema": schema}
    if version == 1:
        update["routingKey"] = {"jsonPointer": "/k", "required": True}
    else:
        ops = [{"op": "rename", "from": f"/v{version - 1}", "to": f"/{member}"}]
        head = {"apiVersion": "durable.lens/v1", "schema": name, "from": version - 1, "to": version}
        update["lens"] = {**head, "ops": ops}
    return json.dumps(update).encode()


def entry_of(version: int, number: int) -> dict[str, Any]:
    return {f"v{version}": number, "k": f"k{number % 3}"}


class DescribedLives(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.models: dict[str, Model] = {}
        self.numbers = 0
        self.queued: list[tuple[int, int]] = []
        """The records in the source of the router that are missing in its destination: the first does not match its
        schema version."""
        self._open()
        self._ask(self.streams.create, FIRST, CreateRequest(content_type=JSON_TYPE))
        self._ask(self.streams.update_schema, FIRST, update_of(FIRST, 1))
        self.models[FIRST] = Model([], [0])
        wish = RouterWish(source=SOURCE, dest=FIRST, rules=RouterRules())
        self._ask(self.engine.put_router, "router", wish)

    def _open(self) -> None:
        self.engine = Engine.recover(self.disk, OPTIONS, self.clock, SeededEntropy(1), boot_id="boot")
        check_totals(self.engine)
        self.streams = inline_streams(self.engine)
        self.engine.routing.kick()

    def _ask(self, asked: Any, *given: Any) -> Any:
        answers: list[object] = []
        try:
            asked(*given, answers.append)
        except TopicsError as error:
            return error
        (answer,) = answers
        return answer

    def _name(self, draw: int) -> str:
        return sorted(self.models)[draw % len(self.models)]

    def _next(self, count: int) -> range:
        self.numbers += count
        return range(self.numbers - count, self.numbers)

    # Actions

    @rule(which=st.integers(0, 9), count=st.integers(1, 4), wrong=st.booleans(), v0=st.booleans())
    def write(self, which: int, count: int, wrong: bool, v0: bool) -> None:
        name = self._name(which)
        model, numbers = self.models[name], self._next(count)
        values = [entry_of(model.version, number) for number in numbers]
        if wrong:
            values[-1] = entry_of(model.version + 1, numbers[-1])
        if v0:
            answer = self._ask(self.engine.append, name, Batch(records=[Record.of(value) for value in values]))
        else:
            body = json.dumps(values).encode()
            answer = self._ask(self.streams.append, name, AppendRequest(body=body, content_type=JSON_TYPE))
        if wrong:
            assert isinstance(answer, InvalidRequestError), answer
            assert (answer.detail["index"], answer.detail["reason"]) == (count - 1, "schema")
        else:
            assert not isinstance(answer, TopicsError), answer
            model.entries += [(model.version, number) for number in numbers]

    @rule(count=st.integers(1, 3), ahead=st.sampled_from([0, 0, 0, 1]))
    def forward(self, count: int, ahead: int) -> None:
        """A router brings entries; one of a later version waits for that, and all behind it."""
        version = self.models[FIRST].version + ahead
        some = [(version, number) for number in self._next(count)]
        records = [Record.of(entry_of(*each), tag="another") for each in some]
        assert not isinstance(self._ask(self.engine.append, SOURCE, Batch(records=records)), TopicsError)
        self.queued += some
        self._deliver()

    def _deliver(self) -> None:
        model = self.models[FIRST]
        while self.queued and self.queued[0][0] == model.version:
            model.entries.append(self.queued.pop(0))

    @rule(which=st.integers(0, 9))
    def evolve(self, which: int) -> None:
        name = self._name(which)
        model = self.models[name]
        answer = self._ask(self.streams.update_schema, name, update_of(name, model.version + 1))
        assert not isinstance(answer, TopicsError), answer
        model.boundaries.append(len(model.entries))
        if name == FIRST:
            self._deliver()

    @precondition(lambda self: len(self.models) < 4)
    @rule(which=st.integers(0, 9), place=st.integers(0, 30))
    def fork(self, which: int, place: int) -> None:
        source = self._name(which)
        model, name = self.models[source], f"s{len(self.models)}"
        at = place % (len(model.entries) + 1)
        offset = offset_of(self.streams.topic(source), Position(at))
        answer = self._ask(self.streams.create, name, CreateRequest(fork=ForkFrom(source, offset)))
        assert not isinstance(answer, TopicsError), answer
        boundaries = [boundary for boundary in model.boundaries if boundary <= at]
        self.models[name] = Model(model.entries[:at], boundaries)

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.engine.run_job(self.engine.checkpointer.job(full=full))

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.crash(Survival.EVERYTHING)
        self._open()

    # Invariants

    @invariant()
    def everything_is_on_its_side(self) -> None:
        for name, model in self.models.items():
            topic = self.streams.topic(name)
            versions = contract_of(topic).registry.versions
            assert [version.boundary for version in versions] == model.boundaries, name
            assert [(record["data"], record["$tag"]) for record in self._written(name)] == [
                (entry_of(*entry), f"k{entry[1] % 3}") for entry in model.entries
            ], name
            shown = [entry_of(model.version, number) for _, number in model.entries]
            assert self._read(name) == shown, name
            assert self._read(name, "k1") == [entry for entry in shown if entry["k"] == "k1"], name

    @invariant()
    def the_router_says_where_it_stands(self) -> None:
        info = self.engine.router("router")
        assert info.lag == len(self.queued)
        head = self.engine.core.directory.load(SOURCE).head
        expected = ("schema", head - len(self.queued) + 1) if self.queued else ("", 0)
        assert (info.blocked_by, info.blocked_seq) == expected

    def _written(self, name: str) -> list[Any]:
        """Returns the entries that the other protocol finds; where a fork leaves its source, a read ends."""
        found: list[Any] = []
        cursor, topic = 0, self.streams.topic(name)
        while cursor < topic.head:
            part = self.engine.read_now(name, ReadRequest(from_seq=cursor, limit=1000, include_tags=True))
            found += part.records()
            cursor = part.next_from_seq
        return found

    def _read(self, name: str, key: str | None = None) -> list[Any]:
        found: list[Any] = []
        position, topic = Position(0), self.streams.topic(name)
        while position.counter < topic.head:
            answers: list[StreamSlice | TopicsError] = []
            self.streams.read(topic, ReadSpec(position=position, key=key, max_records=4), answers.append)
            part = answers[0]
            assert isinstance(part, StreamSlice)
            found += json.loads(part.body)
            position = part.position
        return found


TestDescribedLives = DescribedLives.TestCase
TestDescribedLives.settings = effort(200, 40)
