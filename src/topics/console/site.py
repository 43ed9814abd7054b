"""Files of a page, out of packages, held in memory once somebody has asked for them.

A file has two forms, as it is and compressed, each with a strong tag of its own; whoever has one of them is told so in
a few bytes. Nothing here is secret and nothing depends on who asks. A page may load what this server serves and nothing
else: no inline script, no inline style, no frame around it, and no text of a record can become markup.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from topics.http.exchange import Exchange
from topics.http.response_encoding import accepts_gzip

_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json",
}  # fmt: skip
_COMPRESSED_FROM = 1024
_LONG_BYTES = 128 * 1024
"""To compress more than this takes so long that requests of others would notice."""
STRICT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)


class _Form(NamedTuple):
    body: bytes
    tag: str
    headers: tuple[tuple[str, str], ...]


class _File(NamedTuple):
    content_type: str
    plain: _Form
    packed: _Form | None


class Site:
    """The files of one page by their path below it; the page itself has the empty one."""

    def __init__(self, sources: Mapping[str, Traversable], policy: str = STRICT_POLICY) -> None:
        self._sources = dict(sources)
        self._files: dict[str, _File] = {}
        self._waiting: dict[str, list[Exchange]] = {}
        """Who waits for a long file to be compressed, which a thread does."""
        self._headers = (
            ("content-security-policy", policy),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            # The browser keeps it and asks each time whether it is still the one: a new server has new files.
            ("cache-control", "no-cache"),
        )

    def __contains__(self, path: str) -> bool:
        return path in self._sources

    def answer(self, exchange: Exchange, path: str) -> None:
        """Gives a file that is there."""
        file = self._files.get(path)
        if file is not None:
            _give(exchange, file)
        elif path in self._waiting:
            self._waiting[path].append(exchange)
        else:
            self._load(path, exchange)

    def _load(self, path: str, exchange: Exchange) -> None:
        source = self._sources[path]
        body = source.read_bytes()
        if len(body) < _LONG_BYTES:
            file = self._files[path] = self._make(source.name, body)
            _give(exchange, file)
            return
        self._waiting[path] = [exchange]
        made = asyncio.get_running_loop().run_in_executor(None, self._make, source.name, body)
        made.add_done_callback(lambda done: self._made(path, done.result()))

    def _made(self, path: str, file: _File) -> None:
        self._files[path] = file
        for exchange in self._waiting.pop(path):
            if not exchange.gone:
                _give(exchange, file)

    def _make(self, name: str, body: bytes) -> _File:
        digest = hashlib.sha256(body).hexdigest()[:24]
        content_type = _TYPES.get("." + name.rpartition(".")[2], "application/octet-stream")
        plain = self._form(body, f'"{digest}"')
        packed = None
        if len(body) >= _COMPRESSED_FROM:
            # Without a time in it, so that the tag stands for the same bytes after a restart.
            smaller = gzip.compress(body, mtime=0)
            packed = self._form(smaller, f'"{digest}-gzip"', ("content-encoding", "gzip"), ("vary", "accept-encoding"))
        return _File(content_type, plain, packed)

    def _form(self, body: bytes, tag: str, *more: tuple[str, str]) -> _Form:
        return _Form(body, tag, (*self._headers, ("etag", tag), *more))


def _give(exchange: Exchange, file: _File) -> None:
    headers = exchange.head.headers
    packed = file.packed is not None and accepts_gzip(headers.get_list("accept-encoding"))
    form = file.packed if packed and file.packed is not None else file.plain
    if _is_known(headers.get("if-none-match"), form.tag):
        exchange.respond(304, b"", "", form.headers)
    else:
        exchange.respond(200, form.body, file.content_type, form.headers)


def _is_known(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in if_none_match.split(","))


# Which files make up the console, and the reference of the API.

_INDEX = "index.html"
_SWAGGER = "flask_swagger_ui"
_SWAGGER_FILES = ("swagger-ui.css", "swagger-ui-bundle.js")
REFERENCE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI makes markup of its own out of strings, from descriptions that are ours."""


def console_site() -> Site:
    """The console. Its files are found now and read when they are asked for."""
    sources = dict(_below(files("topics.console") / "static", ""))
    sources[""] = sources.pop(_INDEX)
    return Site(sources)


def reference_site() -> Site | None:
    """The reference of the API in Swagger UI; None where the package that has its files is not installed."""
    # Found without importing it: its files are all that is wanted, and its code needs a web framework.
    spec = find_spec(_SWAGGER)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "dist"
    if not all((folder / name).is_file() for name in _SWAGGER_FILES):
        return None
    sources = dict(_below(files("topics.console") / "reference", ""))
    sources[""] = sources.pop(_INDEX)
    return Site({**sources, **{name: folder / name for name in _SWAGGER_FILES}}, REFERENCE_POLICY)


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{path}{entry.name}/")
        elif not entry.name.startswith("."):
            yield f"{path}{entry.name}", entry
