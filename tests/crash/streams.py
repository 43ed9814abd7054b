"""Streams under crashes: a play of stream operations, its answers, and the conditions after any ending.

The engine runs on the caller's stack over a fake disk that stops before a call. An answer to a player is a promise; a
request without an answer may have been carried out or not, but not in parts and not twice.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from tests.crash.sweeps import SHORTAGES
from tests.property.totals import check_totals
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.log.fs import FileSystem
from topics.log.group_commit import InlineCommitter
from topics.log.layout import Layout
from topics.model.errors import StreamGoneError, TopicNotFoundError, TopicsError
from topics.ops.repair.repair import verify
from topics.schema.contract import Contract
from topics.streams.append import Appended, AppendRequest
from topics.streams.lifecycle import Created, CreateRequest, ForkFrom
from topics.streams.read import ReadSpec, StreamSlice
from topics.streams.stream_frames import Producer
from topics.streams.stream_state import JSON_TYPE, Position, contract_of
from topics.streams.streams import inline_streams
from topics.testing import (
    NO_FAULTS,
    FakeDisk,
    Fault,
    FaultPlan,
    FaultyFileSystem,
    ManualClock,
    PowerCut,
    SeededEntropy,
    Survival,
)

OPTIONS = EngineOptions(data_dir="data", wal_shards=2, wal_file_bytes=65536, segment_max_events=4)


class Sent(NamedTuple):
    """One append: its content, and whether it was acknowledged."""

    stream: str
    values: tuple[str, ...]
    producer: Producer | None
    close: bool
    acked: bool


class Player:
    """Does the same as a client, and remembers its answers."""

    def __init__(self, disk: FileSystem, options: EngineOptions = OPTIONS) -> None:
        self.options = options
        self.clock = ManualClock()
        self.sent: list[Sent] = []
        self.changed: list[Changed] = []
        self.created: dict[str, CreateRequest] = {}
        self.maybe_created: dict[str, CreateRequest] = {}
        self.deleted: set[str] = set()
        self.maybe_deleted: set[str] = set()
        self.boots = 0
        self.open(disk, restarted=True)

    def open(self, disk: FileSystem, restarted: bool) -> None:
        self.boots += restarted
        self.engine = Engine.recover(disk, self.options, self.clock, SeededEntropy(1), boot_id=f"boot-{self.boots}")
        check_totals(self.engine)
        self.streams = inline_streams(self.engine)

    def create(self, name: str, **settings: object) -> None:
        request = CreateRequest(content_type="text/plain", **settings)  # type: ignore[arg-type]
        self.maybe_created[name] = request
        if request.body:
            assert isinstance(request.body, bytes)
            self.sent.append(Sent(name, (request.body.decode(),), None, False, False))
        outcome = self._ask(lambda done: self.streams.create(name, request, done))
        if isinstance(outcome, Created):
            self.created[name] = request
            if request.body:
                self.sent[-1] = self.sent[-1]._replace(acked=True)

    def append(
        self, name: str, value: str, producer: Producer | None = None, close: bool = False
    ) -> Appended | TopicsError | None:
        request = AppendRequest(body=value.encode(), content_type="text/plain", producer=producer, close=close)
        self.sent.append(Sent(name, (value,) if value else (), producer, close, False))
        outcome = self._ask(lambda done: self.streams.append(name, request, done))
        if isinstance(outcome, Appended):
            self.sent[-1] = self.sent[-1]._replace(acked=True)
        return outcome if isinstance(outcome, Appended | TopicsError) else None

    def close(self, name: str) -> None:
        self.append(name, "", close=True)

    def create_described(self, name: str) -> None:
        """A stream whose entries have the member of its version: `{"v1":…}`, then `{"v2":…}`, and so on."""
        request = CreateRequest(content_type=JSON_TYPE)
        if isinstance(self._ask(lambda done: self.streams.create(name, request, done)), Created):
            self.evolve(name, 1)

    def evolve(self, name: str, version: int) -> None:
        """Installs a version; with its commit held back, it is on its way like everything else."""
        place = len(self.changed)
        self.changed.append(Changed(name, version, None))
        body = _version_update(name, version)

        def done(outcome: object) -> None:
            if isinstance(outcome, Contract):
                boundary = outcome.registry.versions[-1].boundary
                self.changed[place] = self.changed[place]._replace(boundary=boundary)

        self._send(lambda: self.streams.update_schema(name, body, done))

    def append_entry(self, name: str, version: int, number: int) -> None:
        place = len(self.sent)
        value = '{"v%d":%d}' % (version, number)  # noqa: UP031 - the braces are JSON's
        self.sent.append(Sent(name, (value,), None, False, False))
        request = AppendRequest(body=value.encode(), content_type=JSON_TYPE)

        def done(outcome: object) -> None:
            if isinstance(outcome, Appended):
                self.sent[place] = self.sent[place]._replace(acked=True)

        self._send(lambda: self.streams.append(name, request, done))

    def hold(self, held: bool) -> None:
        """Keeps the following operations together in one commit."""
        for shard in self.engine.core.shards:
            committer = shard.committer
            assert isinstance(committer, InlineCommitter)
            committer.hold = held
            if not held:
                committer.flush()

    @staticmethod
    def _send(send: Callable[[], None]) -> None:
        with suppress(TopicsError):
            send()

    def delete(self, name: str) -> None:
        self.maybe_deleted.add(name)
        outcome = self._ask(lambda done: self.streams.delete(name, done))
        if outcome is not None and not isinstance(outcome, TopicsError):
            self.deleted.add(name)

    def checkpoint(self) -> None:
        self.engine.run_job(self.engine.checkpointer.job())

    def _ask(self, ask: Callable[[Callable[[object], None]], None]) -> object | None:
        """The answer; None when there was none."""
        answers: list[object] = []
        try:
            ask(answers.append)
        except TopicsError as error:
            return error
        return answers[0] if answers else None

    def read(self, name: str) -> str:
        """Everything in a stream, by its name."""
        topic, text, position = self.streams.topic(name), "", Position(0)
        while True:
            found: list[StreamSlice | TopicsError] = []
            self.streams.read(topic, ReadSpec(position=position, as_json=False, max_bytes=7), found.append)
            slice_ = found[0]
            assert isinstance(slice_, StreamSlice), slice_
            assert slice_.tombstone is None
            text += slice_.body.decode()
            position = slice_.position
            if slice_.at_tail:
                return text


class Changed(NamedTuple):
    """One update of a schema, and the boundary that its answer named; None while it was not answered."""

    stream: str
    version: int
    boundary: int | None


Scenario = Callable[[Player], None]


class Ending(NamedTuple):
    survival: Survival
    seed: int
    restarted: bool


def endings(call: int) -> tuple[Ending, ...]:
    return (
        Ending(Survival.EVERYTHING, 0, False),
        Ending(Survival.NOTHING, 0, True),
        Ending(Survival.TORN, call, True),
        Ending(Survival.SCATTERED, call, True),
    )


def broken_promises(scenario: Scenario, check: Callable[[Player], Iterator[str]], step: int = 1) -> Iterator[str]:
    """Stops a scenario before each call, lets it end in every way, and reports broken promises."""
    whole = FakeDisk()
    scenario(Player(whole))
    for call in range(1, whole.call_count + 2, step):
        disk = FakeDisk(stop_before=call)
        players: list[Player] = []
        try:
            player = Player.__new__(Player)
            players.append(player)
            player.__init__(disk)  # type: ignore[misc]
            scenario(player)
        except PowerCut:
            pass
        for ending in endings(call):
            survivor = _twin(players[0])
            crashed = disk.clone().crash(ending.survival, ending.seed)
            try:
                boot = f"boot-{survivor.boots + ending.restarted}"
                if crashed.exists("data") and (found := verify(crashed.clone(), Layout("data", None), boot)).findings:
                    yield f"stopped before call {call}, {ending}: verify takes it for damage: {found.findings}"
                survivor.open(crashed, ending.restarted)
                for text in check(survivor):
                    yield f"stopped before call {call}, {ending}: {text}"
            except Exception as error:
                yield f"stopped before call {call}, {ending}: fails with {error!r}"


def _twin(player: Player) -> Player:
    twin = Player.__new__(Player)
    twin.__dict__.update({name: value.copy() if isinstance(value, list | dict | set) else value
                          for name, value in player.__dict__.items()})  # fmt: skip
    twin.clock = ManualClock(player.clock.now_ms())
    return twin


def check_streams(player: Player) -> Iterator[str]:
    """Acknowledged entries are present, once and in order; other entries are present whole or not at all."""
    for name in player.maybe_created:
        try:
            text = player.read(name)
        except (TopicNotFoundError, StreamGoneError):
            if name in player.created and name not in player.maybe_deleted:
                yield f"{name} is gone"
            continue
        if name in player.deleted:
            yield f"{name} is back"
        yield from _check_content(player, name, text)


def _check_content(player: Player, name: str, text: str) -> Iterator[str]:
    request = player.maybe_created[name]
    at = 0
    if request.fork is not None:
        inherited = "".join(v for sent in player.sent if sent.stream == request.fork.source for v in sent.values)
        while at < len(text) and at < len(inherited) and text[at] == inherited[at] and text[at] != "|":
            at += 1
    closed = False
    for sent in (sent for sent in player.sent if sent.stream == name):
        value = "".join(sent.values)
        if value and text.startswith(value, at):
            if closed:
                yield f"{name} took {value!r} after it was closed"
            at += len(value)
        elif value and sent.acked:
            yield f"{name} has lost {value!r}: it holds {text!r}"
        closed = closed or (sent.close and sent.acked)
    if at != len(text):
        yield f"{name} holds {text[at:]!r}, which nobody sent like that"
    state = player.streams.state(player.streams.topic(name))
    if closed and (state is None or not state.closed):
        yield f"{name} was closed and is open"


def check_producers(player: Player) -> Iterator[str]:
    """A producer that sends everything of its last run again after the crash has it in the stream exactly once."""
    yield from check_streams(player)
    runs: dict[tuple[str, str], list[Sent]] = {}
    for sent in player.sent:
        if sent.producer is not None:
            run = runs.setdefault((sent.stream, sent.producer.id), [])
            if run and run[0].producer is not None and run[0].producer.epoch < sent.producer.epoch:
                run.clear()
            run.append(sent)
    for (name, _), run in runs.items():
        if name in player.created:
            yield from _check_run(player, name, run)


def _check_run(player: Player, name: str, run: list[Sent]) -> Iterator[str]:
    for sent in run:
        value = "".join(sent.values)
        before = player.read(name).count(value)
        outcome = player.append(name, value, sent.producer, sent.close)
        if not isinstance(outcome, Appended):
            yield f"{name}: the repetition of {value!r} is answered with {outcome!r}"
        elif sent.acked and not outcome.duplicate:
            yield f"{name}: {value!r} was acknowledged, and its repetition is taken for new"
        after = player.read(name).count(value)
        if after != 1:
            yield f"{name}: {value!r} is there {after} times after its repetition ({before} before)"


def _version_update(name: str, version: int) -> bytes:
    member = {"type": "object", "required": [f"v{version}"], "properties": {f"v{version}": {"type": "integer"}}}
    update: dict[str, object] = {"schema": member}
    if version > 1:
        op = {"op": "rename", "from": f"/v{version - 1}", "to": f"/v{version}"}
        update["lens"] = {
            "apiVersion": "durable.lens/v1", "schema": name, "from": version - 1, "to": version, "ops": [op],
        }  # fmt: skip
    return msgspec.json.encode(update)


def check_described(player: Player) -> Iterator[str]:
    """Every boundary is where its answer said, every entry is on its side, and reads show the current version."""
    for name in {change.stream for change in player.changed}:
        topic = player.engine.core.directory.find(name)
        if topic is None:
            if any(change.stream == name and change.boundary is not None for change in player.changed):
                yield f"{name} is gone"
            continue
        versions = contract_of(topic).registry.versions
        for change in player.changed:
            if change.stream == name and change.boundary is not None:
                if len(versions) < change.version:
                    yield f"{name} has lost version {change.version}"
                elif versions[change.version - 1].boundary != change.boundary:
                    yield f"{name}: version {change.version} begins at {versions[change.version - 1].boundary}"
        written = _entries(player, name, as_json=False)
        boundaries = [version.boundary for version in versions]
        for number, entry in enumerate(written):
            if list(entry) != [f"v{bisect_right(boundaries, number)}"]:
                yield f"{name}: entry {number} is {entry}, with boundaries at {boundaries}"
        shown = _entries(player, name, as_json=True)
        if [list(entry.values()) for entry in shown] != [list(entry.values()) for entry in written]:
            yield f"{name}: {written} is shown as {shown}"
        if any(list(entry) != [f"v{len(versions)}"] for entry in shown):
            yield f"{name}: {shown} is not all of version {len(versions)}"
        there = [f"{msgspec.json.encode(entry).decode()}" for entry in written]
        sent = [sent for sent in player.sent if sent.stream == name]
        for each in sent:
            if each.acked and each.values[0] not in there:
                yield f"{name} has lost {each.values[0]}"
        if len(set(there)) != len(there) or not set(there) <= {each.values[0] for each in sent}:
            yield f"{name} holds {there}, which nobody sent like that"


def _entries(player: Player, name: str, as_json: bool) -> list[dict[str, int]]:
    text, position, topic = b"", Position(0), player.streams.topic(name)
    while True:
        found: list[StreamSlice | TopicsError] = []
        player.streams.read(topic, ReadSpec(position=position, as_json=as_json, max_records=2), found.append)
        part = found[0]
        assert isinstance(part, StreamSlice), part
        text += part.body[1:-1] + b"," if as_json and part.count else b"" if as_json else part.body
        position = part.position
        if part.at_tail:
            break
    parts = b"[%b]" % (text.rstrip(b",") if as_json else text.replace(b"}{", b"},{"))
    return msgspec.json.decode(parts, type=list[dict[str, int]])


def fork_of(source: str, offset: str | None = None) -> ForkFrom:
    return ForkFrom(source, offset)


def small(**changes: object) -> EngineOptions:
    return msgspec.structs.replace(OPTIONS, **changes)


def promises_broken_by_failures(
    scenario: Scenario, check: Callable[[Player], Iterator[str]], faults: Sequence[Fault] = (Fault.EIO, Fault.SHORT)
) -> Iterator[str]:
    """Lets each call of a scenario fail, once and permanently, and reports promises broken then and after it."""
    trace = FaultyFileSystem(FakeDisk(), NO_FAULTS)
    scenario(Player(trace))
    for call, (operation, _) in enumerate(trace.trace, start=1):
        for fault in faults:
            if fault is Fault.SHORT and operation != "write":
                continue
            only = SHORTAGES.get(fault, frozenset())
            for lasting in (False, True) if not only or operation in only else ():
                plan = FaultPlan(call, fault, lasting, only=only)
                inner = FakeDisk()
                player = Player.__new__(Player)
                try:
                    player.__init__(FaultyFileSystem(inner, plan))  # type: ignore[misc]
                    scenario(player)
                except OSError:
                    continue  # It did not start, and reported that.
                for ending in endings(call)[:2]:
                    survivor = _twin(player)
                    try:
                        survivor.open(inner.clone().crash(ending.survival, ending.seed), ending.restarted)
                        for text in check(survivor):
                            yield f"{plan} {operation}, {ending}: {text}"
                    except Exception as error:
                        yield f"{plan} {operation}, {ending}: fails with {error!r}"
