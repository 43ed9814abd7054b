"""Invalid requests to /v1: every header and parameter of the protocol, alone and together, with good values, borderline
ones and nonsense.
"""

import string
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from hypothesis import strategies as st

from topics.streams.stream_state import encode_offset

SEEN = "<an offset that was told>"
"""Stands for the last offset that an answer named, which only the test that sends the requests knows."""
NAMES = ("a", "b", "c/d")
"""Streams that requests agree on, below a folder of the example's own."""


@dataclass(frozen=True)
class Asked:
    """A request. `{}` in its path and its headers stands for the example's folder."""

    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()
    body: bytes = b""


_OFFSETS = (
    SEEN, "-1", "now", "", "0", "1", "NOW", "-2", "0" * 26, "7" + "Z" * 25, "8" + "0" * 25, "z" * 26, "U" * 26,
    "٠" * 26, "0000000000000000_0000000000000000", "9999999999999999_9999999999999999", "0" * 25, "0" * 27, "a,b",
    "a/b", "a b",
    *(encode_offset(*place) for place in ((0, 0, 1), (1, 0, 0), (1, 2**63, 0), (1, 2**64 - 1, 2**32 - 1))),
)  # fmt: skip
_NUMBERS = (
    "0", "1", "2", "00", "01", "-1", "+1", "1.0", "1e3", "", " 1", "9007199254740991", "9007199254740992",
    "18446744073709551616", "99999999999999999999999999", "０", "²",
)  # fmt: skip
_DURATIONS = (
    "0", "1", "5", "60", "1s", "250ms", "1500ms", "1h", "24h", "30m", "1d", "0s", "01", "-5", "1.5", "1 s", "1e3", "1w",
    "PT1S", "", "9999999999", "10000000000", "999999999999999", "999999999999999ms", "999999999999999h",
    "99999999999999d", "999999999999999d", "9999999999999999",
)  # fmt: skip
_TIMES = (
    "2026-01-31T12:00:00Z", "2126-01-31T12:00:00Z", "2126-01-31t12:00:00.123456789z", "2126-01-31 12:00:00+14:00",
    "2126-01-31T12:00:00+24:00", "2126-01-31T12:00:00-23:59", "2126-02-30T12:00:00Z", "2126-01-31T24:00:00Z",
    "2126-06-30T23:59:60Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00",
    "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59-14:00",
    "2126-01-31", "2126-01-31T12:00:00", "0", "1", "1767225600000000000", "4900000000000000000", "9223372036854775807",
    "9999999999999999999", "99999999999999999999", "-1", "", "now",
)  # fmt: skip
_TYPES = (
    "application/json", "text/plain", "Application/JSON; charset=utf-8", "TEXT/PLAIN;x", "application/octet-stream", "",
    ";", " ", "json", "text/event-stream", 'a/b; c="\\"', "application/x-www-form-urlencoded", "é/é",
)  # fmt: skip
_SOURCES = (
    "/v1/stream/{}/a", "/v1/stream/{}/b", "/v1/stream/{}/c/d", "/v1/stream/{}/c%2Fd", "http://h/v1/stream/{}/a",
    "/v1/stream/{}/a?x=1", "/v1/stream/{}/a/", "/v1/stream/{}/none", "/v1/stream/", "/v1/stream", "/", "", "{}/a", "://",
    "http://", "/v1/stream/__ds/subscriptions", "/v1/stream/__ds%2Fsubscriptions", "/v1/stream/%00", "/v1/stream/%ff",
    "/v1/stream/a/_schema", "/v0/topics/a",
)  # fmt: skip
_WORDS = ("k", "", "é", '"', "\\", "k" * 256, "k" * 257, "k" * 5000, "~")

HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Type": _TYPES,
    "Stream-Seq": ("0", "1", "2", *_WORDS),
    "Stream-Key": _WORDS,
    "Stream-Timestamp": _TIMES,
    "Stream-TTL": _DURATIONS,
    "Stream-Expires-At": _TIMES,
    "Stream-Closed": ("true", "TRUE", "false", "1", ""),
    "Producer-Id": ("p", "q", *_WORDS),
    "Producer-Epoch": _NUMBERS,
    "Producer-Seq": _NUMBERS,
    "Stream-Forked-From": _SOURCES,
    "Stream-Fork-Offset": _OFFSETS,
    "Stream-Fork-Sub-Offset": _NUMBERS,
    "If-None-Match": ("*", 'W/"slice"', '""'),
    "Accept": ("text/event-stream", "*/*", "application/json"),
    "Host": ("localhost", "a:b", "é", ""),
    "X-Forwarded-Proto": ("https", "gopher", "https, http"),
}
QUERIES: dict[str, tuple[str, ...]] = {
    "offset": _OFFSETS,
    "live": ("true", "long-poll", "sse", "1", "", "false", "LONG-POLL", "0"),
    "cursor": ("", "0", "1", "-1", "x", "9" * 18, "9" * 19, "9" * 5000, "９"),
    "timeout": _DURATIONS,
    "since": _TIMES,
    "key": _WORDS,
    "format": ("json", "raw", "", "xml"),
    "filter": ("", "a:b", "has:a"),
    "limit": _NUMBERS,
    "after": _WORDS,
    "prefix": _WORDS,
    "unknown": _WORDS,
}
# The parameters of each method, in groups that belong together.
GROUPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "PUT": (
        (), ("Stream-TTL",), ("Stream-Expires-At",), ("Stream-Closed",), ("Stream-Forked-From",),
        ("Stream-Forked-From", "Stream-Fork-Offset"),
        ("Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset"),
    ),
    "POST": (
        (), ("Stream-Seq",), ("Stream-Key",), ("Stream-Timestamp",), ("Stream-Closed",),
        ("Producer-Id", "Producer-Epoch", "Producer-Seq"),
        ("Producer-Id", "Producer-Epoch", "Producer-Seq", "Stream-Closed", "Stream-Seq"),
    ),
    "GET": ((), ("If-None-Match",)),
}  # fmt: skip
BODIES = (
    b"x", b"[1,2]", b'["a"]', b'{"a":1}', b"[]", b"[[]]", b"null", b" 1 ", b"[", b"[1,]", b"\xff", b'"\xff"', b"1 2",
    b'"\\ud800"', b"[" * 3000, b"[" * 500 + b"]" * 500, b"1e999", b"NaN", b'{"a":1,"a":2}', b"\xef\xbb\xbf1", b"\0",
    b"", b'"' + b"y" * 3000 + b'"', b"z" * 5000, b"[" + b"7," * 2000 + b"7]", b"w" * 70_000,
)  # fmt: skip
PATHS = (
    "/v1/stream/{}/a/pk/k", "/v1/stream/{}/a/pk/", "/v1/stream/{}/a/pk/%ff", "/v1/stream/{}/a/_schema",
    "/v1/stream/{}/",
    "/v1/stream/", "/v1/stream", "/v1/streams", "/v1/streams/", "/v1/stream/{}/%00", "/v1/stream/{}/%ff",
    "/v1/stream/{}/%F0%9F%8C%8A", "/v1/stream/{}/" + "n" * 1000, "/v1/stream/{}/" + "n" * 1100, "/v1/stream/{}/..",
    "/v1/stream/__ds", "/v1/stream/__ds/jwks.json", "/v1/stream/__ds/subscriptions",
    "/v1/stream/__ds/subscriptions/%ff",
    "/v1/stream/__ds%2Fsubscriptions", "/v1/stream/{}/%zz", "/v1/stream/{}/a%", "/v1//stream/a", "/v1/stream/{}/é",
)  # fmt: skip
_OBJECT = b'{"type":"object","properties":{"a":{"type":"integer"}}}'
_PLAIN = (b"", b"x", b"[]", b"{}", b"null", b"{" * 3000, b'{"a":' * 100 + b"1" + b"}" * 100, b"\xff", b"1" * 300_000)
PARTS: dict[str, tuple[bytes, ...]] = {
    "_schema": (
        *_PLAIN, b'{"schema":%b}' % _OBJECT, b'{"schema":{}}', b'{"schema":true}', b'{"schema":{"type":"x"}}',
        b'{"schema":{"$ref":"#"}}', b'{"schema":{"pattern":"(?=a)"}}', b'{"schema":{"pattern":"(a{1000}){1000}"}}',
        b'{"routingKey":{"jsonPointer":"/a","required":true}}', b'{"routingKey":{"jsonPointer":"/a","required":false}}',
        b'{"routingKey":null}', b'{"search":null}', b'{"search":{}}', b'{"lens":{}}', b'{"schema":{},"lens":{}}',
        b'{"schema":%b,"lens":{"apiVersion":"durable.lens/v1","schema":"x","from":1,"to":2,"ops":[]}}' % _OBJECT,
        b'{"schema":{"enum":[%b]}}' % b",".join([b'"%d"' % n for n in range(3000)]),
        b'{"schema":{"minimum":1e999}}', b'{"schema":{"title":"\xc3\xa9\\u0000"}}', b'{"apiVersion":5,"schema":{}}',
    ),
    "_profile": (
        *_PLAIN, *(b'{"profile":{"kind":"%b"}}' % kind for kind in (b"evlog", b"metrics", b"otel-traces", b"generic")),
        b'{"profile":{"kind":"state-protocol","touch":{"enabled":true,"touchCoalesceWindowMs":1}}}',
        b'{"profile":{"kind":"evlog","redactKeys":["a","A"]}}', b'{"profile":{"kind":"x"}}', b'{"profile":5}',
        b'{"profile":{"kind":"state-protocol","touch":{"enabled":true,"memory":{"k":0}}}}',
    ),
    "touch/meta": _PLAIN,
    "touch/wait": (
        *_PLAIN, b'{"cursor":"now","keys":["a"],"timeoutMs":0}', b'{"cursor":"now","keyIds":[1],"timeoutMs":5}',
        b'{"cursor":"0000000000000000:0","keys":["8c646d3dd6bc68f4"],"timeoutMs":0}', b'{"cursor":"x","keys":["a"]}',
        b'{"cursor":"now","keys":["a"],"timeoutMs":1,"templateIdsUsed":["0123456789abcdef"],"interestMode":"coarse"}',
    ),
    "touch/templates/activate": (
        *_PLAIN, b'{"templates":[{"entity":"e","fields":[{"name":"a","encoding":"int64"}]}]}', b'{"templates":[]}',
    ),
}  # fmt: skip
"""Bodies for the resources of a stream besides its entries."""
_METHODS = ("PUT", "PUT", "PUT", "POST", "POST", "POST", "GET", "GET", "GET", "HEAD", "DELETE", "OPTIONS", "PATCH")
_TYPED = ("Content-Type", b"text/plain")


def query_of(*pairs: tuple[str, str]) -> str:
    # The placeholder is distinct from its replacement only as long as it is not escaped.
    return "&".join(f"{name}={value if value == SEEN else quote(value, errors='replace')}" for name, value in pairs)


def each_value_alone() -> Iterator[Asked]:
    """Every value of every header and parameter in an otherwise good request, and every body and path."""
    for number, (name, value) in enumerate((name, value) for name, values in HEADERS.items() for value in values):
        odd = (name, value.encode())
        typed = () if name == "Content-Type" else (_TYPED,)
        company = tuple((other, b"0") for other in ("Producer-Id", "Producer-Epoch", "Producer-Seq") if other != name)
        source = (("Stream-Forked-From", b"/v1/stream/{}/a"),) if name.startswith("Stream-Fork-") else ()
        producer = company if name.startswith("Producer") else ()
        yield Asked("PUT", f"/v1/stream/{{}}/new-{number}", headers=(*typed, odd, *source), body=b"x")
        yield Asked("POST", "/v1/stream/{}/a", headers=(*typed, odd, *producer), body=b"x")
        yield Asked("GET", "/v1/stream/{}/b", headers=(odd,))
    for name, values in QUERIES.items():
        for value in values:
            for live in ("", "long-poll", "sse"):
                more = [("live", live), ("offset", "-1")] if live else []
                pairs = [pair for pair in more if pair[0] != name]
                yield Asked("GET", "/v1/stream/{}/b", query_of((name, value), *pairs))
            yield Asked("GET", "/v1/streams", query_of((name, value)))
    for body in BODIES:
        for content_type in (b"text/plain", b"application/json"):
            name = "a" if content_type == b"text/plain" else "c/d"
            yield Asked("POST", f"/v1/stream/{{}}/{name}", headers=(("Content-Type", content_type),), body=body)
    for path in PATHS:
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"):
            yield Asked(method, path, headers=(_TYPED,), body=b"" if method in ("GET", "HEAD") else b"x")


def each_part() -> Iterator[Asked]:
    """Every statement about the entries of a stream, each time to a guest that may have received it before; and entries
    in between."""
    for number, (part, body) in enumerate((part, body) for part, bodies in PARTS.items() for body in bodies):
        for name in NAMES:
            path = f"/v1/stream/{{}}/{name}"
            yield Asked("POST", f"{path}/{part}", body=body)
            yield Asked("GET", f"{path}/{part}")
            json = (("Content-Type", b"application/json"),)
            yield Asked("POST", path, headers=json, body=BODIES[number % len(BODIES)])
            yield Asked("GET", path, query_of(("offset", "-1"), ("key", "k")) if number % 2 else "")


# Whatever a header can carry without ending: any bytes, control characters among them.
_bytes = st.binary(max_size=12).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
_letters = st.text(string.ascii_letters + string.digits, min_size=1, max_size=30)


def _value(samples: tuple[str, ...]) -> st.SearchStrategy[bytes]:
    """Mostly values with a meaning for the server; else any value that fits into a header."""
    known = st.sampled_from([sample.encode() for sample in samples])
    return st.integers(0, 9).flatmap(
        lambda number: known if number < 8 else st.one_of(_letters.map(str.encode), _bytes)
    )


@st.composite
def parts(draw: st.DrawFn) -> Asked:
    part, name = draw(st.sampled_from(sorted(PARTS))), draw(st.sampled_from(NAMES))
    method = draw(st.sampled_from(("POST", "POST", "GET", "PUT")))
    return Asked(method, f"/v1/stream/{{}}/{name}/{part}", body=draw(st.sampled_from(PARTS[part])))


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    if not draw(st.integers(0, 4)):
        return draw(parts())
    method = draw(st.sampled_from(_METHODS))
    parameters = draw(st.lists(st.sampled_from(sorted(QUERIES)), max_size=4)) if method in ("GET", "HEAD") else []
    texts = {
        name: st.one_of(st.sampled_from(QUERIES[name]), st.sampled_from(QUERIES[name]), st.text()) for name in QUERIES
    }
    names = [*draw(st.sampled_from(GROUPS.get(method, ((),))))]
    if method in ("PUT", "POST") and draw(st.integers(0, 9)):
        names.append("Content-Type")
    if not draw(st.integers(0, 3)):
        names += draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=4))
    usual = st.sampled_from([f"/v1/stream/{{}}/{name}" for name in NAMES])
    return Asked(
        method,
        draw(usual if draw(st.integers(0, 9)) else st.sampled_from(PATHS)),
        query_of(*((name, draw(texts[name])) for name in parameters)),
        tuple((name, draw(_value(HEADERS[name]))) for name in names),
        draw(st.one_of(st.sampled_from(BODIES), st.binary(max_size=40))) if method in ("PUT", "POST", "PATCH") else b"",
    )


histories = st.lists(requests(), min_size=1, max_size=10)
