"""Webhooks over https: trusted certificates, their names, and the reported error when one is not trusted."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer
from tests.http.streams.authority import Authority
from tests.http.streams.conftest import append, create
from tests.http.streams.receivers import PATIENCE_S, Receiver

ADDRESS = str(socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)[0][4][0])
"""Returns the address that localhost resolves to on this machine: 127.0.0.1, or ::1."""

Open = Callable[..., Receiver]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("https")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def server(folder: Path, ours: Authority) -> Iterator[LiveServer]:
    with LiveServer(folder, streams_webhook_ca_file=str(ours.file)) as live:
        yield live


@pytest.fixture
def opened() -> Iterator[Open]:
    """Receivers that are closed when the test is over."""
    with ExitStack() as stack:

        def open_one(certificate: Path) -> Receiver:
            made = Receiver(certificate, ADDRESS)
            stack.callback(made.close)
            return made

        yield open_one


class Hook:
    """A subscription whose webhook is called for its own stream."""

    def __init__(self, http: httpx.Client, name: str, url: str) -> None:
        self._http = http
        self._path = f"/v1/stream/__ds/subscriptions/{name}"
        self._stream = f"/v1/stream/{name}"
        create(http, self._stream)
        body = {"type": "webhook", "streams": [name], "webhook": {"url": url}}
        assert http.put(self._path, json=body).status_code == 201

    def wake(self) -> None:
        append(self._http, self._stream, b"x")

    def reported(self) -> dict[str, Any]:
        webhook: dict[str, Any] = self._http.get(self._path).json()["webhook"]
        return webhook

    def failure(self) -> str:
        """Why the call was not taken, once it was not."""
        wait_until(lambda: self.reported()["failures"] > 0)
        return str(self.reported()["last_error"])


def wait_until(so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def count(http: httpx.Client, what: str) -> float:
    metrics = http.get("/v0/metrics", headers={"accept": "application/json"}).json()
    found: float = metrics[f"topics_webhook_{what}_total"]
    return found


@pytest.mark.parametrize("host", [ADDRESS, "localhost"])
def test_a_certificate_of_the_operators_own_authority_is_trusted(
    http: httpx.Client, name: str, ours: Authority, opened: Open, host: str
) -> None:
    receiver = opened(ours.certificate(host))
    before = count(http, "failures")
    hook = Hook(http, name, receiver.url_by(host))
    hook.wake()
    assert receiver.call()["subscription_id"] == name
    assert receiver.received_headers[0]["host"] == receiver.url_by(host).split("/")[2]
    assert (hook.reported()["failures"], hook.reported()["last_error"], count(http, "failures")) == (0, None, before)


def test_certificate_of_an_unknown_authority_is_refused(
    http: httpx.Client, server: LiveServer, folder: Path, name: str, opened: Open
) -> None:
    receiver = opened(Authority(folder, "theirs").certificate(ADDRESS, "localhost"))
    before = count(http, "failures")
    hook = Hook(http, name, receiver.url)
    hook.wake()
    reason = hook.failure()
    assert "certificate verify failed" in reason and "issuer" in reason
    assert count(http, "failures") > before
    assert receiver.calls.empty(), "nothing was said to somebody who is not who we meant"
    assert "webhook failed" in server.log() and "certificate verify failed" in server.log()


@pytest.mark.parametrize("named", ["localhost", "hooks.example.com"])
def test_a_certificate_for_another_host_is_refused(
    http: httpx.Client, name: str, ours: Authority, opened: Open, named: str
) -> None:
    receiver = opened(ours.certificate(named))
    hook = Hook(http, name, receiver.url)
    hook.wake()
    assert "not valid for" in hook.failure()
    assert receiver.calls.empty()


def test_a_host_does_not_vouch_for_another_one_at_its_address(
    http: httpx.Client, name: str, ours: Authority, opened: Open
) -> None:
    receiver = opened(ours.certificate(ADDRESS))
    receiver.sent_headers = [("set-cookie", "for=nobody-else")]
    known = Hook(http, f"{name}-known", receiver.url)
    calls = count(http, "calls")
    receiver.answers = [(200, b'{"done": true}')]
    known.wake()
    receiver.call()
    wait_until(lambda: count(http, "calls") > calls)
    # The receiver keeps its connections open, and a call over one of them would not look at a certificate again.
    other = Hook(http, f"{name}-other", receiver.url_by("localhost"))
    other.wake()
    assert "not valid for 'localhost'" in other.failure()
    assert receiver.calls.empty()
    receiver.answers = [(200, b'{"done": true}')]
    known.wake()
    receiver.call()
    assert all("cookie" not in headers for headers in receiver.received_headers), "what one was told is its own"


def test_receiver_without_tls_is_refused(http: httpx.Client, name: str) -> None:
    receiver = Receiver(address=ADDRESS)
    try:
        hook = Hook(http, name, receiver.url.replace("http:", "https:"))
        hook.wake()
        assert "SSL" in hook.failure()
        assert receiver.calls.empty()
    finally:
        receiver.close()


def test_without_the_setting_only_public_authorities_are_trusted(
    tmp_path: Path, name: str, ours: Authority, opened: Open
) -> None:
    receiver = opened(ours.certificate(ADDRESS))
    with LiveServer(tmp_path) as live, httpx.Client(base_url=live.url, timeout=30.0) as http:
        hook = Hook(http, name, receiver.url)
        hook.wake()
        assert "certificate verify failed" in hook.failure()
