"""The load balancer of deploy/proxy before two servers: requests reach the primary, also after a takeover."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.http.proxies import free_port, replaced
from tests.http.test_failover import Pair, request, s3, wait_for_primary
from tests.s3 import S3Server
from tests.unit.docs.pages import ROOT

__all__ = ["s3"]

pytestmark = pytest.mark.slow

_PATIENCE_S = 60.0


@contextmanager
def balanced(folder: Path, urls: list[str]) -> Iterator[str]:
    """The address of the load balancer, once it accepts connections."""
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip("there is no haproxy: `apt-get install haproxy` gets it")
    port = free_port()
    text = (ROOT / "deploy/proxy/haproxy.cfg").read_text()
    servers = {f"topics-{n} topics-{n}:4000": f"topics-{n} {url[7:]}" for n, url in enumerate(urls, 1)}
    (folder / "haproxy.cfg").write_text(replaced(text, {"bind :4000": f"bind 127.0.0.1:{port}", **servers}))
    process = subprocess.Popen([program, "-db", "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                break
            assert process.poll() is None and time.monotonic() < give_up, "haproxy does not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(_PATIENCE_S)


def test_requests_reach_the_primary_before_and_after_a_takeover(s3: S3Server, tmp_path: Path) -> None:
    pair = Pair(tmp_path, s3.make_bucket("balanced") + "/place")
    try:
        with balanced(tmp_path, pair.urls) as url:
            append = {"records": [{"data": 1}], "idempotency_key": "a"}
            request([url], "PUT", "/v0/topics/orders", {"durability": "remote"})
            request([url], "POST", "/v0/topics/orders", append)
            primary, term = wait_for_primary(pair.servers)
            primary.kill()
            request([url], "POST", "/v0/topics/orders", {"records": [{"data": 2}], "idempotency_key": "b"})
            assert wait_for_primary(pair.servers, term)[0] is not primary
            page = request([url], "POST", "/v0/topics/orders/diff", {"from_seq": 0}).json()
            assert [record["data"] for record in page["records"]] == [1, 2]
    finally:
        pair.close()
