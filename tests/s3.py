"""A real S3 server over loopback, in its own process, that tests can take away and bring back with its objects.

It is moto's, which speaks S3 over HTTP and keeps everything in memory. It is installed apart from everything else
(requirements/s3.txt), so it is started with its own path.
"""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Self

BUCKET = "bucket"
PAGE_NAMES = 100
"""The number of names in one answer, a tenth of the usual one."""

HOME = Path(sys.prefix) / "s3"
_SCRIPT = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
app, server, port = DomainDispatcherApplication(create_backend_app), None, 0
print("loaded", flush=True)
for word in sys.stdin:
    if word.strip() == "up":
        server = make_server("127.0.0.1", port, app, threaded=True)
        port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    else:
        server.shutdown()
        server.server_close()
    print(port, flush=True)
"""


class S3Server:
    """Leaving the `with` block ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables that a process needs for access."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_REGION": "us-east-1",
        }

    def up(self) -> None:
        """Answers again, at the port of the first time."""
        self._port = int(self._say("up"))

    def down(self) -> None:
        """Refuses every connection; the objects stay."""
        self._say("down")

    def make_bucket(self, name: str = BUCKET) -> str:
        """Makes an empty bucket; its URL."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/{name}", method="PUT")
        with urllib.request.urlopen(request) as answer:
            answer.read()
        return f"s3://{name}"

    def _say(self, word: str) -> str:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(word + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    def __enter__(self) -> Self:
        assert HOME.is_dir(), "the S3 server of the tests is not installed: run `make setup`"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONPATH": str(HOME), "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE_NAMES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "loaded\n"
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
