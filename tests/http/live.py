"""A real server in its own process, that tests start, stop, kill and start again on the same port."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx

# Only to fail instead of hanging: no test looks at how long anything took.
_PATIENCE_S = 60.0
_SERVE = ("-c", "import sys; from topics.cli import main; sys.exit(main(['serve']))")


def wait_until_ready(url: str, key: str = "") -> None:
    """The port opens before the log is replayed. A test that restarts a server, and sends it no request that waits by
    itself, waits for the latter."""
    give_up = time.monotonic() + _PATIENCE_S
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, verify=False, trust_env=False, timeout=_PATIENCE_S) as client:
        while client.get("/readyz").status_code == httpx.codes.SERVICE_UNAVAILABLE:
            assert time.monotonic() < give_up, "the server never became ready"
            time.sleep(0.005)


class LiveServer:
    """`topics serve` on a folder, or another program that does the same. In the `with` block it is ready until a test
    stops it, and leaving the block ends everything that still runs.
    """

    def __init__(self, folder: Path, program: Sequence[str] = _SERVE, **settings: str) -> None:
        self._folder = folder
        self._program = program
        self._settings = {f"TOPICS_{name.upper()}": value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._port = "0"

    @property
    def url(self) -> str:
        scheme = "https" if "TOPICS_TLS_CERT_FILE" in self._settings else "http"
        return f"{scheme}://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Starts it, and does not wait for the log; from the second time on at the port of the first."""
        self._starts += 1
        port_file = self._folder / f"port-{self._starts}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        own = {
            "TOPICS_PORT": self._port,
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_DATA_DIR": str(self._folder / "data"),
            "TOPICS_WAL_SHARDS": "1",
            # Tests of the families enable them: no other test needs a Spark beside it.
            "TOPICS_SEARCH_FAMILIES": "off",
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._program],
                cwd=self._folder,
                env={**inherited, **own, **self._settings},
                stdout=log,
                stderr=log,
            )
        give_up = time.monotonic() + _PATIENCE_S
        while not port_file.exists():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.kill()  # No other code will: the `with` block was never entered.
                raise AssertionError(f"the server did not start:\n{self.log()}")
            time.sleep(0.01)
        self._port = port_file.read_text().rpartition(":")[2]
        return self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Blocks its loop meanwhile: requests sent within the block arrive in one moment."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it as an operator would, and expects it to go well."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(_PATIENCE_S) == 0, self.log()
        self._process = None

    def kill(self) -> None:
        """Ends it as no operator would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_PATIENCE_S)
        self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def __enter__(self) -> Self:
        self.start()
        try:
            wait_until_ready(self.url)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()
