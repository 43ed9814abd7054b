"""Keys in a file: created and revoked by commands, reloaded by a running server on a signal, stored as digests."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.events import EventStream
from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer
from topics.cli import main

# Only to fail instead of hanging.
_PATIENCE_S = 30.0


class Keys:
    """A file of keys, and the commands on it."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capfd = capfd

    def create(self, name: str, *options: str) -> str:
        self._capfd.readouterr()
        assert main(["key", "create", name, "--file", str(self.path), *options]) == 0
        return self._capfd.readouterr().out.strip()

    def revoke(self, name: str) -> None:
        assert main(["key", "revoke", name, "--file", str(self.path)]) == 0


@pytest.fixture
def keys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Keys:
    return Keys(tmp_path / "keys.json", capfd)


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def status(live: LiveServer, secret: str, path: str = "/v0/topics") -> int:
    return httpx.get(live.url + path, headers={"authorization": f"Bearer {secret}"}).status_code


def reload(live: LiveServer, word: str) -> None:
    """Sends the signal to read the file, and waits for the result in the log."""
    before = live.log().count(word)
    os.kill(live.pid, signal.SIGHUP)
    until(lambda: live.log().count(word) > before)


def test_a_life_of_keys(tmp_path: Path, keys: Keys) -> None:
    boss = keys.create("boss")
    with LiveServer(tmp_path, key_file=str(keys.path), api_keys="fixed") as live:
        assert [status(live, secret) for secret in (boss, "fixed", "other")] == [200, 200, 401]
        till = keys.create("till", "--scopes", "read+write", "--prefix", "shop.", "--prefix", "jobs.")
        reload(live, "key file reloaded")
        assert [status(live, secret) for secret in (till, boss, "fixed")] == [200, 200, 200]
        assert status(live, till, "/v0/topics/other") == 403
        assert status(live, till, "/v0/topics/jobs.x") == 404
        keys.revoke("till")
        reload(live, "key file reloaded")
        assert [status(live, secret) for secret in (till, boss, "fixed")] == [401, 200, 200]
        log = live.log()
        assert boss not in log
        assert till not in log


def test_key_file_changes_count_without_a_signal(tmp_path: Path, keys: Keys) -> None:
    boss = keys.create("boss")
    with LiveServer(tmp_path, key_file=str(keys.path)) as live:
        till = keys.create("till")
        until(lambda: status(live, till) == 200)
        keys.path.write_text("half edited")
        until(lambda: "key file reload failed" in live.log())
        assert [status(live, secret) for secret in (boss, till)] == [200, 200]
        keys.path.unlink()
        other = keys.create("other")
        until(lambda: status(live, other) == 200)
        assert [status(live, secret) for secret in (boss, till)] == [401, 401]


def test_missing_or_empty_key_file_names_the_command_that_creates_a_key(tmp_path: Path, keys: Keys) -> None:
    with pytest.raises(AssertionError, match=r"does not exist\. Create a key with `topics key create NAME --file"):
        LiveServer(tmp_path, key_file=str(keys.path)).start()
    keys.path.touch()
    with pytest.raises(AssertionError, match=r"is empty\. Create a key with `topics key create NAME --file"):
        LiveServer(tmp_path, key_file=str(keys.path)).start()
    secret = keys.create("first")
    with LiveServer(tmp_path, key_file=str(keys.path)) as live:
        assert status(live, secret) == 200


def test_revoked_key_closes_its_open_connections(tmp_path: Path, keys: Keys) -> None:
    """On connections that are kept, whose heads the server knows; other keys notice nothing."""
    stays, goes = keys.create("stays"), keys.create("goes")
    with LiveServer(tmp_path, key_file=str(keys.path)) as live:
        clients = [
            httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {secret}"}) for secret in (stays, goes)
        ]
        for client in clients:
            for _ in range(3):
                assert client.post("/v0/topics/t", json={"records": [{"data": 1}]}).is_success
        token = clients[1].post("/v0/tokens", json={}).json()["token"]
        watches = [
            client.post("/v0/watch", json={"topics": {"t": {"tail": True}}}).json()["stream_url"] for client in clients
        ]
        bearers = [{"authorization": f"Bearer {secret}"} for secret in (stays, goes)]
        with (
            EventStream(live.url, watches[0], bearers[0]) as kept,
            EventStream(live.url, watches[1], bearers[1]) as ended,
            open_socket(live.url, goes) as socket,
        ):
            assert (kept.event().name, ended.event().name) == ("caught-up", "caught-up")
            socket.quiet()
            keys.revoke("goes")
            reload(live, "key file reloaded")
            assert ended.event().name == "error"
            ended.ended()
            assert socket.closed() in (1000, 1001)
            refused(clients[1].post("/v0/topics/t", json={"records": [{"data": 1}]}), 401, "unauthorized")
            assert httpx.get(f"{live.url}/v1/stream/t?token={token}").status_code == 401
            assert clients[0].post("/v0/topics/t", json={"records": [{"data": "more"}]}).is_success
            assert kept.event().data["records"][0]["data"] == "more"
        for client in clients:
            client.close()


@pytest.mark.parametrize("spoilt", ["", "{", '{"keys":[{"name":"x","sha256":"y"}]}', '{"keys":[{"name":"x"}]}', None])
def test_a_file_that_is_malformed_changes_nothing(tmp_path: Path, keys: Keys, spoilt: str | None) -> None:
    secret = keys.create("k")
    with LiveServer(tmp_path, key_file=str(keys.path)) as live:
        keys.path.unlink() if spoilt is None else keys.path.write_text(spoilt)
        reload(live, "key file reload failed")
        assert [status(live, secret), status(live, "other")] == [200, 401]
        live.stop()
        with pytest.raises(AssertionError, match="the key file"):
            live.start()


def test_empty_key_file_refuses_every_request(tmp_path: Path, keys: Keys) -> None:
    keys.create("k")
    keys.revoke("k")
    with LiveServer(tmp_path, key_file=str(keys.path), host="0.0.0.0") as live:
        assert status(live, "k") == httpx.get(f"{live.url}/v0/topics").status_code == 401
        assert "AUTHENTICATION IS DISABLED" not in live.log()


def test_no_plaintext_of_a_key_is_held_by_a_running_server(tmp_path: Path, keys: Keys) -> None:
    """Neither that of the setting nor one of the file, which was never there."""
    secret, setting = keys.create("k"), "a-secret-of-the-setting-0123456789"
    result = tmp_path / "hunt.txt"
    program = (str(Path(__file__).parents[1] / "secret_hunt.py"),)
    os.environ["HUNT_BACKWARDS"], os.environ["HUNT_RESULT"] = f"{secret[::-1]},{setting[::-1]}", str(result)
    try:
        with LiveServer(tmp_path, program, key_file=str(keys.path), api_keys=f"{setting}:rw:shop.") as live:
            result.with_suffix(".go").touch()
            until(result.exists)
            # Not before: a request with it would be found as well.
            assert status(live, setting, "/v0/topics/shop.x") == 404
    finally:
        del os.environ["HUNT_BACKWARDS"], os.environ["HUNT_RESULT"]
    assert result.read_text() == ""


def test_a_server_without_files_to_read_again_survives_the_signal(tmp_path: Path) -> None:
    with LiveServer(tmp_path, pipeline="off") as live:
        for _ in range(20):
            os.kill(live.pid, signal.SIGHUP)
            assert httpx.get(f"{live.url}/v0/health").status_code == 200
