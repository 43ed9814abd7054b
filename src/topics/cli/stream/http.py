"""The few requests of /v1 that the commands need, over the standard library: the Python client speaks /v0 alone."""

import http.client
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from topics.cli.shared.connection import Server, resolve, unreachable
from topics.cli.shared.contexts import Context
from topics.cli.shared.failures import UsageError
from topics.client import ApiError, UnexpectedAnswer
from topics.client.errors import refusal

_TIMEOUT_S = 30.0
JSON = "application/json"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class LineFailed(Exception):
    """No answer came."""


class Streams:
    """One connection, made anew when it is gone."""

    def __init__(self, where: Context) -> None:
        self.url = where.url
        parts = urlsplit(where.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{where.url!r} is not the URL of a server")
        self._base = parts.path.rstrip("/")
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._line = make(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        self._headers = {"authorization": f"Bearer {where.api_key}"} if where.api_key else {}

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """Raises `ApiError` for a refusal and `LineFailed` where no answer came."""
        path = self._base + target + ("?" + urlencode(query) if query else "")
        try:
            self._line.request(method, path, body, {**self._headers, **(headers or {})})
            response = self._line.getresponse()
            answer = Answer(response.status, _lowered(response.getheaders()), response.read())
        except (OSError, http.client.HTTPException) as error:
            self._line.close()
            raise LineFailed(str(error) or type(error).__name__) from error
        if answer.status >= 400:
            raise _refusal(answer)
        return answer

    def close(self) -> None:
        self._line.close()


def _lowered(headers: list[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _refusal(answer: Answer) -> ApiError:
    try:
        error = msgspec.json.decode(answer.body)["error"]
        code, message, detail = str(error["code"]), str(error["message"]), dict(error.get("detail") or {})
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return UnexpectedAnswer(answer.status, answer.body[:200].decode("utf-8", "replace"))
    return refusal(answer.status, code, message, detail, None)


@contextmanager
def streams_of(server: Server) -> Iterator[Streams]:
    """The streams of the server that is meant."""
    streams = Streams(resolve(server, os.environ))
    try:
        yield streams
    except LineFailed as error:
        raise unreachable(streams.url, error) from error
    finally:
        streams.close()


def path_of(name: str) -> str:
    """The path of a stream; slashes belong to its name."""
    if not name.strip("/"):
        raise UsageError("a stream needs a name")
    return "/v1/stream/" + quote(name.lstrip("/"), safe="/")


def type_of(streams: Streams, name: str) -> str:
    """The content type that a stream has for good. An answer to HEAD could not say why there is none."""
    answer = streams.ask("GET", path_of(name), query={"offset": "now"})
    return answer.headers.get("content-type", "application/octet-stream")


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON
