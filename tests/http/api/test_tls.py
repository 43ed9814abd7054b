"""https, spoken by the server itself: with a certificate from files, which are read again while it serves."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect as connect_websocket

from tests.http.live import LiveServer
from tests.http.streams.authority import Authority
from topics_client import Client, ClientOptions

# Only to fail instead of hanging.
_PATIENCE_S = 30.0
ONE = {"records": [{"data": 1}]}


class Site:
    """A server with a certificate of an authority that only configured clients trust."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.authority = Authority(folder, "authority")
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.renew()
        self.live = LiveServer(
            folder, tls_cert_file=str(self.cert), tls_key_file=str(self.key), pipeline="off", **settings
        )

    def renew(self) -> None:
        both = self.authority.certificate("127.0.0.1")
        shutil.copy(both, self.cert)
        shutil.copy(both, self.key)

    @property
    def url(self) -> str:
        return self.live.url.replace("http:", "https:")

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.file))

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.trust, timeout=30.0)

    def hang_up(self, word: str) -> None:
        before = self.live.log().count(word)
        os.kill(self.live.pid, signal.SIGHUP)
        until(lambda: self.live.log().count(word) > before)

    def shown_certificate(self) -> bytes:
        host, port = self.url.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port))) as plain,
            self.trust.wrap_socket(plain, server_hostname=host) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("tls"))
    with made.live:
        yield made


def test_both_protocols_event_streams_and_sockets_speak_it(site: Site) -> None:
    with site.client() as client:
        assert client.post("/v0/topics/t", json=ONE).status_code == 201
        created = client.put("/v1/stream/s", headers={"content-type": "application/json"})
        assert created.status_code == 201 and created.headers["location"].startswith("https://")
        large = {"records": [{"data": "x" * 100_000}] * 40}
        assert client.post("/v0/topics/t", json=large).json()["count"] == 40
        read = client.post("/v0/topics/t/diff", json={"limit": 100, "max_batch_bytes": 8_000_000}).json()
        assert [len(str(record["data"])) for record in read["records"]] == [1, *[100_000] * 40]
        wid = client.post("/v0/watch", json={"topics": {"t": {"from_seq": 0}}}).json()["wid"]
        with client.stream("GET", f"/v0/watch/{wid}") as events:
            assert next(line for line in events.iter_lines() if line.startswith("event:"))
    with connect_websocket(site.url.replace("https", "wss") + "/v0/ws", ssl=site.trust) as ws:
        ws.send(json.dumps({"op": "publish", "topic": "t", **ONE}))
        assert json.loads(ws.recv())["op"] == "ack"


def test_pipelined_requests_and_a_refusal_in_the_middle_of_a_body(site: Site) -> None:
    host, port = site.url.removeprefix("https://").split(":")
    get = b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with (
        socket.create_connection((host, int(port))) as plain,
        site.trust.wrap_socket(plain, server_hostname=host) as secured,
    ):
        secured.sendall(get * 50)
        answered = b""
        while answered.count(b"HTTP/1.1 200") < 50:
            answered += secured.recv(65536)
        secured.sendall(b"POST /v0/topics/t/diff HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        secured.sendall(b"content-length: 99999999\r\n\r\n" + b"x" * 10_000)
        refusal = b""
        with contextlib.suppress(ssl.SSLError, OSError):
            while part := secured.recv(65536):
                refusal += part
        assert refusal.startswith(b"HTTP/1.1 413")


def test_nothing_older_than_1_2_and_nothing_plain(site: Site) -> None:
    host, port = site.url.removeprefix("https://").split(":")
    old = site.trust
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.deprecated_call():
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((host, int(port))) as plain, pytest.raises((ssl.SSLError, OSError)):
        old.wrap_socket(plain, server_hostname=host)
    with pytest.raises(httpx.HTTPError):
        httpx.get(site.live.url + "/v0/health")
    with site.client() as client:
        assert client.get("/v0/health").status_code == 200


def test_a_new_certificate_counts_for_new_connections_and_old_ones_live_on(site: Site) -> None:
    before = site.shown_certificate()
    with site.client() as client:
        assert client.get("/v0/health").status_code == 200
        site.renew()
        assert site.shown_certificate() == before, "not before the server is told"
        site.hang_up("certificate reloaded")
        assert site.shown_certificate() != before
        renewed = site.shown_certificate()
        assert client.get("/v0/health").status_code == 200
        site.key.write_text("no key")
        site.hang_up("certificate reload failed")
        assert site.shown_certificate() == renewed
        assert client.get("/v0/health").status_code == 200
        site.renew()


def test_the_client_and_the_command_line_trust_whom_they_are_asked_to(site: Site) -> None:
    with Client(site.url, options=ClientOptions(ssl_context=site.trust)) as client:
        assert client.append("by-client", [1]).first_seq == 1
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
        "TOPICS_URL": site.url,
        "NO_PROXY": "*",
    }
    program = [
        sys.executable,
        "-c",
        "import sys; from topics.cli import main; sys.exit(main(sys.argv[1:]))",
        "ls",
    ]
    reported = {**environment, "SSL_CERT_FILE": str(site.authority.file)}
    done = subprocess.run(program, env=reported, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0 and "by-client" in done.stdout, done.stderr
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode != 0, "nobody else has heard of the authority"


def test_connections_that_never_shake_hands_are_bounded_and_make_room(tmp_path: Path) -> None:
    site = Site(tmp_path, max_connections="20")
    with site.live, contextlib.ExitStack() as idle:
        host, port = site.url.removeprefix("https://").split(":")
        for _ in range(60):
            idle.enter_context(socket.create_connection((host, int(port))))
        with site.client() as client:
            until(lambda: client.get("/v0/ready").status_code == 200)
            counted = client.get("/v0/metrics", headers={"accept": "application/json"}).json()
        assert counted["topics_http_connections"] <= 21
        descriptors = len(list(Path(f"/proc/{site.live.pid}/fd").iterdir()))
        assert descriptors < 60


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_cert_file": "cert.pem"}, "TOPICS_TLS_CERT_FILE and TOPICS_TLS_KEY_FILE are set together"),
        ({"tls_cert_file": "cert.pem", "tls_key_file": "nothing"}, "make no certificate"),
        ({"tls_cert_file": "junk", "tls_key_file": "key.pem"}, "make no certificate"),
        ({"tls_cert_file": "other.pem", "tls_key_file": "key.pem"}, "make no certificate"),
        ({"audit_file": "no/such/folder/audit"}, "TOPICS_AUDIT_FILE"),
    ],
)
def test_files_that_are_malformed_are_reported_at_the_start(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    made = Site(tmp_path)
    (tmp_path / "junk").write_text("no certificate")
    shutil.copy(made.authority.certificate("127.0.0.1"), tmp_path / "other.pem")
    with pytest.raises(AssertionError, match=said):
        LiveServer(tmp_path, pipeline="off", **settings).start()


@pytest.mark.parametrize(("http2", "version"), [(True, "HTTP/2"), (False, "HTTP/1.1")])
def test_the_version_of_http_is_agreed_on(site: Site, http2: bool, version: str) -> None:
    with httpx.Client(base_url=site.url, verify=site.trust, http2=http2, timeout=30.0) as client:
        answer = client.post("/v0/topics/agreed", json=ONE)
        assert (answer.http_version, answer.is_success) == (version, True)
        wid = client.post("/v0/watch", json={"topics": {"agreed": {"from_seq": 0}}}).json()["wid"]
        with client.stream("GET", f"/v0/watch/{wid}") as events:
            assert next(line for line in events.iter_lines() if line.startswith("event:")) == "event: record"
        large = client.post("/v0/topics/agreed", json={"records": [{"data": "x" * 100_000}] * 20})
        assert large.json()["count"] == 20


def test_a_server_may_offer_http_1_alone(tmp_path: Path) -> None:
    made = Site(tmp_path, http2="0")
    with made.live, httpx.Client(base_url=made.url, verify=made.trust, http2=True, timeout=30.0) as client:
        assert client.get("/v0/health").http_version == "HTTP/1.1"
