"""Static files of the console and the API reference, cached in memory on first use.

A file has a plain and a compressed form, each with a strong ETag, so that clients with a cached copy get a 304. The
files are public and the same for every client. The content security policy allows only files of this server: no inline
script or style, no framing, and no record text as markup.
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

from topics.http.exchange import Exchange, accepts_gzip

_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json",
}  # fmt: skip
_COMPRESSED_FROM = 1024
_LONG_BYTES = 128 * 1024
"""Larger files are compressed in a thread, because other requests would wait."""
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
    """The files of one page by relative path; the page itself has the empty path."""

    def __init__(self, sources: Mapping[str, Traversable], policy: str = STRICT_POLICY) -> None:
        self._sources = dict(sources)
        self._files: dict[str, _File] = {}
        self._waiting: dict[str, list[Exchange]] = {}
        """Requests that wait for the compression of a file in a thread."""
        self._headers = (
            ("content-security-policy", policy),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            # The browser revalidates its copy each time, because a new server version has new files.
            ("cache-control", "no-cache"),
        )

    def __contains__(self, path: str) -> bool:
        return path in self._sources

    def answer(self, exchange: Exchange, path: str) -> None:
        """Responds with an existing file."""
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
            # Without a timestamp, so that the ETag has the same bytes after a restart.
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


# The console and the API reference.

_INDEX = "index.html"
_SWAGGER = "flask_swagger_ui"
_SWAGGER_FILES = ("swagger-ui.css", "swagger-ui-bundle.js")
REFERENCE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI creates markup from strings, which are only descriptions of this server."""


def console_site() -> Site:
    """Returns the console. Its files are listed now and read on first use."""
    sources = dict(_below(files("topics.console") / "static", ""))
    sources[""] = sources.pop(_INDEX)
    return Site(sources)


def reference_site() -> Site | None:
    """Returns the API reference in Swagger UI; None if the package with its files is not installed."""
    # Located without an import: only its files are needed, and its code needs a web framework.
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
