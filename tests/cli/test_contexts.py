"""Which server a command talks to, and which key goes there."""

import http.server
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.terminal import run
from topics.cli.failures import CommandError, UsageError
from topics.cli.server_connection import (
    HERE,
    Context,
    Contexts,
    Server,
    config_path,
    load_contexts,
    resolve,
    save_contexts,
)

FILE = """
current = "shop"

[contexts.shop]
url = "http://shop"
api_key = "shop-key"

[contexts."far away"]
url = "https://far"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    return {"TOPICS_CONFIG": str(path)}


# The sources of the server address and the key, from the strongest to the weakest. A key never goes to a server that it
# is not meant for.
ORDER: list[tuple[Server, Mapping[str, str], Context]] = [
    (HERE, {}, Context("http://shop", "shop-key")),
    (HERE, {"TOPICS_API_KEY": "k"}, Context("http://shop", "shop-key")),
    (HERE, {"TOPICS_CONTEXT": "far away"}, Context("https://far", None)),
    (HERE, {"TOPICS_CONTEXT": "far away", "TOPICS_API_KEY": "k"}, Context("https://far", None)),
    (HERE, {"TOPICS_URL": "http://env", "TOPICS_CONTEXT": "shop"}, Context("http://env", None)),
    (HERE, {"TOPICS_URL": "http://env", "TOPICS_API_KEY": "k"}, Context("http://env", "k")),
    (HERE, {"TOPICS_URL": " ", "TOPICS_API_KEY": ""}, Context("http://shop", "shop-key")),
    (Server(context="far away"), {"TOPICS_URL": "http://env", "TOPICS_API_KEY": "k"}, Context("https://far", None)),
    (Server(url="http://flag"), {"TOPICS_CONTEXT": "shop"}, Context("http://flag", None)),
    (Server(url="http://flag"), {"TOPICS_API_KEY": "k"}, Context("http://flag", "k")),
    (Server(url="http://flag", api_key="f"), {"TOPICS_API_KEY": "k"}, Context("http://flag", "f")),
    (Server(api_key="f"), {}, Context("http://shop", "f")),
    (Server(context="shop", api_key="f"), {}, Context("http://shop", "f")),
]


@pytest.mark.parametrize(("server", "more", "expected"), ORDER)
def test_the_order(env: dict[str, str], server: Server, more: Mapping[str, str], expected: Context) -> None:
    assert resolve(server, {**env, **more}) == expected


def test_without_anything_it_is_this_machine(tmp_path: Path) -> None:
    nothing = {"TOPICS_CONFIG": str(tmp_path / "none")}
    assert resolve(HERE, nothing) == Context("http://127.0.0.1:4000", None)
    assert resolve(HERE, {**nothing, "TOPICS_API_KEY": "k"}) == Context("http://127.0.0.1:4000", "k")


def test_a_context_that_is_not_there(env: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"did you mean shop\?"):
        resolve(Server(context="shpo"), env)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"TOPICS_CONFIG": "/x/y.toml", "XDG_CONFIG_HOME": "/z"}, "/x/y.toml"),
        ({"XDG_CONFIG_HOME": "/z", "HOME": "/h"}, "/z/topics/config.toml"),
        ({"HOME": "/h"}, "/h/.config/topics/config.toml"),
    ],
)
def test_where_the_file_is(given: dict[str, str], path: str) -> None:
    assert str(config_path(given)) == path


@pytest.mark.parametrize("text", ["plain", 'with "quotes" and \\ and \\n', "ä 日本", "a.b]c"])
def test_saved_context_is_loaded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "new" / "config.toml"
    contexts = Contexts(text, {text: Context("http://x", text), "other": Context("http://y")})
    save_contexts(path, contexts)
    assert load_contexts(path) == contexts
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    "content", [b"x = [", b"\xff", b"contexts = 1", b"[contexts.a]\nurl = 1", b"[contexts]\na = 1"]
)
def test_a_file_that_is_malformed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(CommandError, match="is not valid"):
        load_contexts(path)


def test_unknown_names_in_the_file_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text('curent = "a"\n[contexts.a]\nurl = "http://a"\napikey = "k"\n')
    assert load_contexts(path).contexts == {"a": Context("http://a")}
    assert capsys.readouterr().err.splitlines() == [
        f"topics: {path}: curent is unknown; did you mean current?",
        f"topics: {path}: contexts.a.apikey is unknown; did you mean api_key?",
    ]


class Listener(http.server.BaseHTTPRequestHandler):
    """Answers nothing useful, and remembers which keys it was shown."""

    keys: list[str | None]

    def do_GET(self) -> None:
        self.keys.append(self.headers.get("authorization"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"topics":[]}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str | None]]]:
    Listener.keys = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", Listener.keys
        finally:
            server.shutdown()
            thread.join()


def test_a_key_follows_its_server(tmp_path: Path, listener: tuple[str, list[str | None]]) -> None:
    """By the real commands: from a context to another address, the key stays behind."""
    url, keys = listener
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **_python_path()}
    assert run("context", "set", "one", "--url", url, "--api-key", "secret", env=env).code == 0
    assert "secret" not in run("context", "ls", env=env).out + run("context", "ls", "-o", "json", env=env).out
    assert run("ls", env=env).code == 0
    assert run("ls", "--url", url, env=env).code == 0
    # A new address without a new key has none.
    assert run("context", "set", "one", "--url", f"{url}/", env=env).out == f"changed one: {url}/\n"
    assert run("ls", env=env).code == 0
    assert keys == ["Bearer secret", None, None]
    assert run("context", "rm", "one", env=env).code == 0
    assert run("context", "ls", "-o", "raw", env=env).out == ""
    assert run("context", "use", "-", env=env).out == "no context is current\n"


def _python_path() -> dict[str, str]:
    import os

    return {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
