"""The proxies of deploy/proxy, really run: the example as it stands, with other ports and a certificate of the test."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.docs.pages import ROOT

_PATIENCE_S = 60.0


class Proxy(NamedTuple):
    url: str
    certificate: Path


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def replaced(text: str, changes: dict[str, str]) -> str:
    """Every change must apply: a changed example would no longer be the tested one."""
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} should be there once"
        text = text.replace(old, new)
    return text


def nginx(folder: Path, program: str, server: str, port: int, pair: tuple[Path, Path]) -> list[str]:
    certificate, key = pair
    site = replaced(
        (ROOT / "deploy/proxy/nginx.conf").read_text(),
        {
            "server 127.0.0.1:4000;": f"server {server};",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
            "server_name topics.example.com;": "server_name localhost;",
            "/etc/ssl/topics.pem": str(certificate),
            "/etc/ssl/topics.key": str(key),
        },
    )
    (folder / "site.conf").write_text(site)
    places = "".join(
        f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # The content that a distribution's nginx.conf has around its sites.
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder / 'pid'}; error_log {folder / 'log'};"
        f"events {{}} http {{ access_log off; {places} include {folder / 'site.conf'}; }}"
    )
    return [program, "-p", str(folder), "-e", str(folder / "log"), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, program: str, server: str, port: int, pair: tuple[Path, Path]) -> list[str]:
    certificate, key = pair
    site = replaced(
        (ROOT / "deploy/proxy/Caddyfile").read_text(),
        {
            "127.0.0.1:4000": server,
            "topics.example.com {": f"https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate} {key}",
        },
    )
    around = f"{{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system {folder / 'storage'}\n}}\n"
    (folder / "Caddyfile").write_text(around + site)
    return [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


Maker = Callable[[Path, str, str, int, tuple[Path, Path]], list[str]]
PROXIES: dict[str, Maker] = {"nginx": nginx, "caddy": caddy}


@contextlib.contextmanager
def proxied(name: str, folder: Path, server_url: str, pair: tuple[Path, Path]) -> Iterator[Proxy]:
    """A proxy before a server, once it answers."""
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip(f"there is no {name}: `apt-get install {name}` gets it")
    port = free_port()
    command = PROXIES[name](folder, program, server_url.removeprefix("http://"), port, pair)
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env={"HOME": str(folder)})
    try:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                break
            if process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError(f"{name} does not start:\n{(folder / 'said').read_text()}")
            time.sleep(0.05)
        yield Proxy(f"https://localhost:{port}", pair[0])
    finally:
        # Not asked: one of them would wait for every stream to end.
        process.kill()
        process.wait(_PATIENCE_S)
