"""A server in this process, on its own thread, whose pressure, files and time a test decides."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from topics.api.app import Api
from topics.api.auth import KeyRing
from topics.api.live import Live, LiveLimits
from topics.api.operator_routes import OpsHandlers
from topics.api.v1.subscriptions import WebhookCaller
from topics.engine.backpressure import Sample
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.http.messages import HttpLimits
from topics.http.server import HttpServer
from topics.log.commit_thread import CommitThread
from topics.log.fs import FileSystem
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings
from topics.server import StreamServices, stream_routes
from topics.streams.system_streams.system_streams import Around
from topics.system.clock import Clock, SystemClock
from topics.testing import SeededEntropy

T = TypeVar("T")

_PATIENCE_S = 60.0
_BODY_BYTES = 1 << 20


class PressedServer:
    """Leaving the `with` block ends it."""

    def __init__(
        self, folder: Path, fs: FileSystem | None = None, clock: Clock | None = None, **options: object
    ) -> None:
        self._fs = fs or PosixFileSystem()
        self._clock = clock or SystemClock()
        values = {"data_dir": str(folder / "data"), "wal_shards": 1, "wal_file_bytes": 1 << 20, **options}
        self._options = EngineOptions(**values)  # type: ignore[arg-type]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.engine: Engine
        self.api: Api
        self.live: Live
        self.url = ""

    def press(self, sample: Sample) -> None:
        """From now on the server measures this, and has done so for long enough to act on it."""

        def pressing() -> None:
            self.engine.throttle.measure = lambda: sample  # type: ignore[method-assign]
            for _ in range(50):
                self.engine.throttle.tick()

        self.on_loop(pressing)

    def stall(self, stalled: bool) -> None:
        """Holds pending writes of the log, like a disk that does not answer."""
        for shard in self.engine.core.shards:
            assert isinstance(shard.committer, CommitThread)
            shard.committer.resume.clear() if stalled else shard.committer.resume.set()

    def on_loop(self, function: Callable[[], T]) -> T:
        """Runs a function where the engine may be touched."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_PATIENCE_S)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        clock = self._clock
        routes = stream_routes(Settings())
        ops = OpsHandlers(clock, routes)
        keys = KeyRing.parse("")
        live = self.live = ops.live = Live(LiveLimits(), keys, clock, SeededEntropy(2))
        api = self.api = ops.api = Api(ops.routes(), keys, clock, _BODY_BYTES, 0, live)
        http = ops.http = HttpServer(api, HttpLimits(body_bytes=_BODY_BYTES), clock)
        ((host, port), *_) = await http.start("127.0.0.1", 0)
        api.engine = self.engine = Engine.recover(self._fs, self._options, clock, SeededEntropy(1))
        self.engine.start(self._loop)
        live.open(self.engine)
        webhooks = WebhookCaller(allow_loopback=True)
        services = StreamServices(self.engine, Settings(), webhooks, Around, lambda topic: None)
        routes.open(services.streams, services.subscriptions)
        self.url = f"http://{host}:{port}"
        self._ready.set()
        await self._stop.wait()
        api.drain()
        await self.engine.close()
        await webhooks.close()
        await services.close()
        await http.drain(0.0)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_PATIENCE_S), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.stall(False)
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive()
