"""Starting, probing and stopping, with an engine that the test controls."""

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import uvloop

from topics import server
from topics.api.live import LiveLimits
from topics.engine.core import EngineOptions
from topics.engine.disk_threads import Workers
from topics.engine.sealing import Unlisted
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.errors import TopicsError
from topics.model.limits import Limits
from topics.model.settings import Settings, SettingsError
from topics.search.service.index_file_cache import HeldUp
from topics.server import DEFAULT_WAL_SHARDS_MAX, engine_options, pipeline_answer, serve
from topics.spark.pipeline.status import PipelineStatus, ProductStatus, Quarantine
from topics.spark.pipeline.supervisor import FAILING, Supervisor
from topics.streams.subscriptions.subscriptions import SubscriptionLimits
from topics.system.events import Event
from topics.system.process import cpu_count
from topics.testing import ManualClock, SeededEntropy

Probe = Callable[[str], Awaitable[tuple[int, dict[str, Any]]]]
Scene = Callable[[Probe, asyncio.Event], Awaitable[None]]


class FakeEngine:
    """Waits in recovery and in closing until the test lets it go on."""

    def __init__(self) -> None:
        self.reported = threading.Event()
        self.may_recover = threading.Event()
        self.may_close = asyncio.Event()
        self.failure: Exception | None = None
        self.happened: list[str] = []
        self.topic_count = 1
        self.shards: list[object] = []
        self.read_only_shards: list[int] = []
        self.disk_full = False
        self.layout, self.segments = Layout("nowhere"), SimpleNamespace(far=None)
        self.limits, self.entropy, self.reader = Limits(), SeededEntropy(1), None
        self.scheduler = SimpleNamespace(topic_put_off=Event(), tick_ended=Event())
        self.topic_added, self.appended, self.second_passed = Event[Any](), Event[Any](), Event[[]]()
        self.find = dict[str, object]().get
        self.set_tenants = list
        self.streams = None
        self.backups = SimpleNamespace(lag_ms=None)
        self.options, self.committing = SimpleNamespace(following=False), False
        self.checkpointer = SimpleNamespace(catalog=SimpleNamespace(work_number=0, families_number=0))

    def stats(self) -> SimpleNamespace:
        throttle = SimpleNamespace(commit_ms=0.0, pressure=0.0)
        return SimpleNamespace(shards=[], throttle=throttle, records_live=0, dead_letters_waiting=0)

    def recover(self, *_: object, progress: Callable[[float], None], **__: object) -> "FakeEngine":
        progress(0.42)
        self.reported.set()
        assert self.may_recover.wait(10)
        if self.failure is not None:
            raise self.failure
        self.happened.append("recovered")
        return self

    def start(self, loop: asyncio.AbstractEventLoop, workers: Workers) -> None:
        assert loop is asyncio.get_running_loop()
        self.happened.append("started")

    async def close(self) -> None:
        await self.may_close.wait()
        self.happened.append("closed")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(server, "Engine", fake)
    return fake


def play(folder: Path, scene: Scene, on_ready: Callable[[str], None] | None = None) -> None:
    """Runs a server and, beside it, `scene` with a way to probe it and the event that stops it."""
    port_file = folder / "port"
    # The engine is none that could be written to.
    quiet: dict[str, Any] = {"streams_registry": "0", "streams_metrics": "0"}
    settings = Settings(port=0, port_file=str(port_file), data_dir=str(folder / "data"), **quiet)

    async def probe(path: str) -> tuple[int, dict[str, Any]]:
        host, port = port_file.read_text().split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert (b"retry-after: 1" in head.lower()) == (b" 503 " in head)
        return int(head.split()[1]), json.loads(body)

    async def both() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(serve(settings, stop, on_ready))
        while not port_file.exists() and not running.done():
            await asyncio.sleep(0.001)
        await scene(probe, stop)
        await running

    uvloop.run(asyncio.wait_for(both(), 10))


async def ready(probe: Probe) -> None:
    while (await probe("/v0/ready"))[0] != 200:
        await asyncio.sleep(0.001)


def test_a_life(tmp_path: Path, engine: FakeEngine) -> None:
    greeted: list[str] = []

    async def scene(probe: Probe, stop: asyncio.Event) -> None:
        assert engine.reported.wait(10)
        for path in ("/v0/ready", "/readyz"):
            status, body = await probe(path)
            assert (status, body["error"]["code"]) == (503, "not_ready")
            assert body["error"]["detail"] == {"replay_progress": 0.42}
        for path in ("/v0/health", "/healthz"):
            status, body = await probe(path)
            assert (status, body["status"]) == (200, "ok")

        assert greeted == []

        engine.may_recover.set()
        await ready(probe)
        assert engine.happened == ["recovered", "started"]
        assert greeted == [(tmp_path / "port").read_text()]
        for path in ("/v0/ready", "/readyz"):
            status, body = await probe(path)
            reported = {
                "status": "ready",
                "wal_replay_complete": True,
                "topics": 1,
                "read_only_shards": [],
                "disk_full": False,
                "backup_lag_ms": None,
                "primary_term": None,
                "role": "primary",
                "primary": None,
                "lag_ms": None,
            }
            assert (status, body) == (200, reported)
        assert (await probe("/nowhere"))[0] == 404

        stop.set()
        status, body = await probe("/v0/ready")
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert (await probe("/v0/health"))[0] == 200
        engine.may_close.set()

    play(tmp_path, scene, greeted.append)
    assert engine.happened == ["recovered", "started", "closed"]


def test_a_replay_does_not_hold_up_a_stop(tmp_path: Path, engine: FakeEngine) -> None:
    async def scene(probe: Probe, stop: asyncio.Event) -> None:
        stop.set()

    play(tmp_path, scene)
    assert engine.happened == []
    engine.may_recover.set()


def test_a_kept_connection_does_not_hold_up_a_stop(tmp_path: Path, engine: FakeEngine) -> None:
    async def scene(probe: Probe, stop: asyncio.Event) -> None:
        engine.may_recover.set()
        engine.may_close.set()
        await ready(probe)
        host, port = (tmp_path / "port").read_text().split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        stop.set()
        assert await reader.read() == b""
        writer.close()

    play(tmp_path, scene)


def test_a_failed_recovery_ends_the_server(tmp_path: Path, engine: FakeEngine) -> None:
    engine.failure = TopicsError("the log is damaged")
    engine.may_recover.set()

    async def scene(probe: Probe, stop: asyncio.Event) -> None:
        pass

    with pytest.raises(TopicsError, match="damaged"):
        play(tmp_path, scene)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"], ids=["missing", "empty", "nonsense"])
def test_a_server_does_not_start_with_authorities_that_it_cannot_read(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_bytes(content)
    settings = Settings(port=0, data_dir=str(tmp_path / "data"), streams_webhook_ca_file=str(file))
    with pytest.raises(SettingsError, match=r"TOPICS_STREAMS_WEBHOOK_CA_FILE is .*authorities\.pem"):
        uvloop.run(serve(settings, asyncio.Event()))


@pytest.mark.parametrize("place", ["ftp://host/archive", "s3://", "s3:///x"])
def test_a_server_does_not_start_with_an_archive_that_is_nowhere(tmp_path: Path, place: str) -> None:
    settings = Settings(port=0, data_dir=str(tmp_path / "data"), archive="1", archive_dir=place)
    with pytest.raises(SettingsError, match=r"TOPICS_ARCHIVE_DIR .*names no object store"):
        uvloop.run(serve(settings, asyncio.Event()))


def test_a_server_does_not_start_without_what_exports_its_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "topics.api.tracing", None)
    settings = Settings(port=0, data_dir=str(tmp_path / "data"), tracing="export")
    with pytest.raises(SettingsError, match=r"TOPICS_TRACING=export needs the extra otel: .*pip install"):
        uvloop.run(serve(settings, asyncio.Event()))


def test_a_server_does_not_start_with_proxies_that_are_no_addresses(tmp_path: Path) -> None:
    settings = Settings(port=0, data_dir=str(tmp_path / "data"), trusted_proxies="proxy.example.com")
    with pytest.raises(SettingsError, match=r"TOPICS_TRUSTED_PROXIES: 'proxy\.example\.com' does not appear"):
        uvloop.run(serve(settings, asyncio.Event()))


def test_what_the_catalog_does_not_name_yet_is_behind(tmp_path: Path) -> None:
    # Without an archive and without a pipeline nothing waits for it.
    for archive, lag in ((True, (2, 70, 900)), (False, (0, 0, 0))):
        settings = Settings(data_dir=str(tmp_path), archive="1" if archive else "0", pipeline="off")
        supervisor = Supervisor(settings, PosixFileSystem(), ManualClock(), lambda: 0)
        answer = pipeline_answer(supervisor, Unlisted(2, 70, 100), 1000)
        assert (answer.lag_segments, answer.lag_bytes, answer.lag_ms) == lag
        quiet = pipeline_answer(supervisor, Unlisted(0, 0, None), 1000)
        assert (quiet.lag_segments, quiet.lag_bytes, quiet.lag_ms) == (0, 0, 0)


def test_every_engine_option_is_a_setting_of_the_same_name() -> None:
    shared = set(EngineOptions.__struct_fields__) - {"limits", "track_removals", "restoring", "following"}
    decided = {"data_dir", "cold_dir", "backup_dir", "wal_shards", "full_disk_reserve_bytes"}
    defaults = EngineOptions(data_dir="")
    assert all(getattr(defaults, name) == getattr(Settings(), name) for name in shared - decided)
    settings = Settings(data_dir="somewhere", cold_dir="elsewhere", wal_shards=3, max_limit=7, segment_max_events=11)
    options = engine_options(settings)
    for name in shared:
        assert getattr(options, name) == getattr(settings, name)
    assert options.limits == Limits(max_limit=7)
    assert not options.track_removals
    assert engine_options(Settings(archive="1")).track_removals


def test_every_limit_of_the_settings_reaches_the_engine() -> None:
    assert engine_options(Settings(strict_config="1")).limits.strict_config
    names = set(Limits.__struct_fields__) & set(Settings.__struct_fields__) - {"strict_config"}
    changed = {name: getattr(Settings(), name) + 1 for name in names}
    limits = msgspec.structs.asdict(engine_options(Settings(**changed)).limits)
    assert {name: limits[name] for name in names} == changed
    elsewhere = {"max_body_bytes", "max_connections", "max_unread_bytes", "max_inflight_per_key"}
    elsewhere |= {"max_searches", "max_searches_per_key"}
    elsewhere |= set(LiveLimits.__struct_fields__) | set(SubscriptionLimits.__struct_fields__)
    assert {name for name in Settings.__struct_fields__ if name.startswith("max_")} - names <= elsewhere


def test_every_setting_of_live_delivery_reaches_it_and_has_the_default_it_has_there() -> None:
    assert msgspec.convert(Settings(), LiveLimits, from_attributes=True) == LiveLimits()


def test_every_limit_of_subscriptions_reaches_them_and_has_the_default_it_has_there() -> None:
    assert msgspec.convert(Settings(), SubscriptionLimits, from_attributes=True) == SubscriptionLimits()
    changed = Settings(max_subscriptions=7)
    assert msgspec.convert(changed, SubscriptionLimits, from_attributes=True).max_subscriptions == 7


def test_a_place_for_backups_in_the_data_folder_is_refused() -> None:
    with pytest.raises(SettingsError, match="is in the data folder"):
        engine_options(Settings(data_dir="./data", backup_dir="data/topics"))


def test_a_cold_folder_that_is_the_data_folder_is_refused() -> None:
    with pytest.raises(SettingsError, match="is the data folder"):
        engine_options(Settings(data_dir="./data", cold_dir="data/"))


def test_the_shards_follow_the_cpus() -> None:
    assert engine_options(Settings()).wal_shards == min(cpu_count(), DEFAULT_WAL_SHARDS_MAX)


def test_what_holds_up_the_families_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=str(tmp_path))
    made = Supervisor(settings, PosixFileSystem(), ManualClock(), lambda: 0)
    assert server.held_up(made, "logs") is None
    left_out = (Quarantine(7, "logs", "families", "damaged", 1, 2, 3), Quarantine(8, "other", "archive", "x", 1, 1, 1))
    monkeypatch.setattr(made._watch_files, "status", PipelineStatus(quarantined=left_out))
    assert server.held_up(made, "logs") == HeldUp(reason="damaged", since_ms=1, attempts=2, retry_at_ms=3)
    assert server.held_up(made, "other") is None
    monkeypatch.setattr(
        made._watch_files, "status", PipelineStatus(quarantined=left_out, error="other is damaged", failures=4)
    )
    made.retry_at_ms = 9
    # Another stream may have caused the failure.
    assert server.held_up(made, "more") == HeldUp(reason=FAILING, attempts=4, retry_at_ms=9)
    assert server.held_up(made, "logs") == HeldUp(reason="damaged", since_ms=1, attempts=2, retry_at_ms=3)
    sick = (ProductStatus("archive", 0, 0, 0, 0, error="x"), ProductStatus("families", 0, 0, 0, 0))
    monkeypatch.setattr(made._watch_files, "status", PipelineStatus(products=sick, error="x", failures=1))
    assert server.held_up(made, "more") is None
    made.reason = "pyspark is not installed"
    found = server.held_up(made, "other")
    assert found is not None and found.install == "make setup-spark"
