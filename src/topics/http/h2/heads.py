"""Heads of HTTP/2 as the rest of the server knows them, both ways.

A request's fields become the `RequestHead` that a request of HTTP/1.1 has: `:authority` is its Host, and a body of
unknown length is what the other version calls chunked. What is malformed by the rules of HTTP/2 is reset; what keeps
to them and asks for too much is refused with the status that it would have there.

An answer is given as HTTP/1.1 says it, for there is one place that knows what belongs into one (`http.render`). Its
lines become fields here: those that speak of the connection are dropped, as streams have no say in that.
"""

import re
from collections.abc import Iterable, Sequence

from topics.http.errors import Fault, HttpError
from topics.http.h2.errors import StreamFault
from topics.http.headers import Headers
from topics.http.limits import HttpLimits
from topics.http.messages import RequestHead, split_target
from topics.http.reader import check_head_size

Fields = list[tuple[bytes, bytes]]

VERSION = "2"

_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_OF_CONNECTIONS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value = re.compile(rb"(?:[^\0\r\n \t](?:[^\0\r\n]*[^\0\r\n \t])?)?").fullmatch
_is_path = re.compile(rb"/[\x21-\x7e]*").fullmatch
_HEAD_END = b"\r\n\r\n"


def read_head(
    fields: Iterable[tuple[bytes, bytes]], limits: HttpLimits, *, ended: bool
) -> tuple[RequestHead, int | None]:
    """The head of a request and the length of its body, None if that is not told; `ended` is that there is none.

    Raises `StreamFault`, and `HttpError` for a head that is well-formed and refused.
    """
    asked, headers = _split(fields)
    method = asked.get(b":method", b"").decode("latin-1")
    if method == "CONNECT":
        raise HttpError(Fault.UNSUPPORTED_METHOD)
    target = asked.get(b":path", b"")
    if not method or b":scheme" not in asked:
        raise StreamFault("a request has a method and a scheme")
    if not _is_path(target) and not (target == b"*" and method == "OPTIONS"):
        raise StreamFault("the path of a request begins with a slash")
    length = _length(headers, ended)
    _set_host(headers, asked.get(b":authority"))
    check_head_size(headers, target, limits)
    if length is None:
        headers.first[b"transfer-encoding"] = b"chunked"
    path, query = split_target(target)
    return RequestHead(method, target, path, query, headers, VERSION, True), length


def _split(fields: Iterable[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], Headers]:
    """The pseudo-headers, and the others."""
    asked: dict[bytes, bytes] = {}
    headers = Headers({}, [])
    for name, value in fields:
        if not _is_value(value):
            raise StreamFault("a value has an end of a line in it, or space around it")
        if name[:1] == b":":
            if name not in _PSEUDO or name in asked or len(headers):
                raise StreamFault("a pseudo-header is unknown, repeated, or behind the headers")
            asked[name] = value
        elif not _is_name(name) or name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise StreamFault("a header has no business on a stream")
        else:
            headers.add(name, value)
    return asked, headers


def _length(headers: Headers, ended: bool) -> int | None:
    """The library has checked that it is a number, and one that the body keeps to."""
    told = headers.first.get(b"content-length")
    if not ended:
        return None if told is None else int(told)
    if told is not None and int(told):
        raise StreamFault("a body is announced and does not come")
    return 0


def _set_host(headers: Headers, authority: bytes | None) -> None:
    hosts = headers.get_all("host")
    if authority is None:
        if len(hosts) != 1:
            raise HttpError(Fault.BAD_HOST, "a request has an :authority, or exactly one Host header")
    elif any(host.encode("latin-1") != authority for host in hosts):
        raise HttpError(Fault.BAD_HOST, "the :authority of a request and its Host header are not the same")
    else:
        headers.first[b"host"] = authority


def split_answer(payload: Sequence[bytes]) -> tuple[Fields, list[bytes]]:
    """The fields of an answer of HTTP/1.1, and the parts of its body."""
    head, _, body = payload[0].partition(_HEAD_END)
    lines = head.split(b"\r\n")
    fields = [(b":status", lines[0][9:12])]
    for line in lines[1:]:
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name not in _OF_CONNECTIONS:
            fields.append((name, value))
    return fields, [part for part in (body, *payload[1:]) if part]
