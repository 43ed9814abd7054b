"""Admission of requests of browsers, and the permission to read the answers."""

import pytest

from topics.api.cors import BadOriginError, BrowserRules
from topics.api.error_responses import ForbiddenError
from topics.http.exchange import for_origin
from topics.http.messages import Headers, RequestHead

KEYLESS = BrowserRules(keyless=True)
WIDER = BrowserRules(keyless=True, hosts="topics.lan, [fd00::1]", origins="https://app.example")
INSECURE = BrowserRules(keyless=True, any_host=True)
KEYED = BrowserRules(origins="https://app.example,http://localhost:3000")
EVERYONE = BrowserRules(origins="*")


def head_of(method: str = "GET", **headers: str) -> RequestHead:
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return RequestHead(method, b"/v0/topics", "/v0/topics", "", Headers.of(pairs), "1.1", True)


def is_admitted(rules: BrowserRules, head: RequestHead) -> bool:
    try:
        rules.admit(head)
    except ForbiddenError:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:4000", "localhost", "LOCALHOST:4000", "localhost.", "a.localhost:1", "[::1]", "[::1]:4000",
     "127.9.8.7"],
)  # fmt: skip
def test_without_keys_names_of_this_machine_are_served(host: str) -> None:
    assert is_admitted(KEYLESS, head_of(host=host))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:4000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[fd00::1]",
     "", "[::1", "evil.example:127.0.0.1", "localhost@evil.example", "0.0.0.0", "notlocalhost"],
)  # fmt: skip
def test_and_no_others(host: str) -> None:
    assert not is_admitted(KEYLESS, head_of(host=host))
    assert not is_admitted(KEYLESS, head_of(host=host)), "nor the second time"


def test_request_without_browser_headers_is_unaffected() -> None:
    for rules in (KEYLESS, WIDER, INSECURE, KEYED, EVERYONE):
        head = head_of()
        assert is_admitted(rules, head)
        assert head.allow_origin is None


def test_hosts_can_be_added() -> None:
    for host in ("topics.lan", "TOPICS.lan:80", "[fd00::1]:9", "localhost"):
        assert is_admitted(WIDER, head_of(host=host))
    assert not is_admitted(WIDER, head_of(host="b.topics.lan"))
    assert is_admitted(BrowserRules(keyless=True, hosts="*"), head_of(host="any.example"))


def test_a_server_for_others_without_keys_has_names_that_it_does_not_know() -> None:
    assert is_admitted(INSECURE, head_of(host="box.lan:4000"))
    assert is_admitted(INSECURE, head_of(host="box.lan:4000", origin="http://box.lan:3000"))
    assert not is_admitted(INSECURE, head_of(host="box.lan:4000", origin="http://evil.example"))
    assert not is_admitted(BrowserRules(keyless=True, any_host=True, hosts="box.lan"), head_of(host="evil.example"))


@pytest.mark.parametrize(
    ("origin", "admitted"),
    [
        ("http://localhost:3000", True), ("http://127.0.0.1", True), ("https://[::1]:1", True), ("null", False),
        ("https://evil.example", False), ("http://localhost.evil.example", False), ("", False), ("file://", False),
        ("http://", False), ("http://[::1", False), ("https://app.example", False),
    ],
)  # fmt: skip
def test_without_keys_only_pages_of_this_machine_may(origin: str, admitted: bool) -> None:
    head = head_of(host="127.0.0.1:4000", origin=origin)
    assert is_admitted(KEYLESS, head) == admitted
    assert head.allow_origin == (origin if admitted else "")


def test_a_request_of_another_site_is_refused_also_without_an_origin() -> None:
    for site in ("same-origin", "same-site", "none"):
        assert is_admitted(KEYLESS, head_of(host="localhost", sec_fetch_site=site))
    assert not is_admitted(KEYLESS, head_of(host="localhost", sec_fetch_site="cross-site"))
    other = {"host": "localhost", "sec_fetch_site": "cross-site"}
    assert not is_admitted(KEYLESS, head_of(**other, origin="http://127.0.0.1:3000"))
    assert is_admitted(WIDER, head_of(**other, origin="https://app.example"))
    assert is_admitted(KEYED, head_of(**other)), "with keys a page needs one, wherever it is from"


def test_a_preflight_of_elsewhere_is_answered_without_the_word_that_would_allow_more() -> None:
    head = head_of("OPTIONS", host="localhost", origin="https://evil.example", sec_fetch_site="cross-site")
    assert is_admitted(KEYLESS, head)
    assert head.allow_origin == ""
    assert not is_admitted(KEYLESS, head_of("OPTIONS", host="evil.example"))


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("https://app.example", "https://app.example"), ("http://localhost:3000", "http://localhost:3000"),
     ("http://localhost:3001", ""), ("https://app.example.evil.example", ""), ("http://app.example", ""), ("null", "")],
)  # fmt: skip
def test_with_keys_the_setting_states_which_pages_may_read(origin: str, allowed: str) -> None:
    head = head_of(host="any.example", origin=origin)
    assert is_admitted(KEYED, head)
    assert head.allow_origin == allowed
    star = head_of(host="any.example", origin=origin)
    EVERYONE.admit(star)
    assert star.allow_origin == "*"


@pytest.mark.parametrize("entry", ["app.example", "https://", "https://a/b", "ftp://a", "https://a/", "https://a?b"])
def test_invalid_origin_prevents_the_start(entry: str) -> None:
    with pytest.raises(BadOriginError):
        BrowserRules(origins=entry)


@pytest.mark.parametrize("entry", ["a:80", "http://a", "a/b", "[::1"])
def test_invalid_host_prevents_the_start(entry: str) -> None:
    with pytest.raises(BadOriginError):
        BrowserRules(hosts=entry)


def test_cors_headers_override_those_of_a_handler() -> None:
    said = (("x", "y"), ("Access-Control-Allow-Origin", "*"), ("access-control-expose-headers", "a"))
    assert list(for_origin("", said)) == [("x", "y")]
    reported = dict(for_origin("https://a", said))
    assert reported["access-control-allow-origin"] == "https://a"
    assert reported["vary"] == "origin"
    assert "vary" not in dict(for_origin("*", said))
