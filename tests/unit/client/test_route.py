"""The route to a server: the address of the connection, and the bytes sent there."""

import pytest

from topics_client.transport.http1 import HttpRequest, render
from topics_client.transport.route import find_route, proxy_for


def sent(url: str, proxy: str | None = "", env: dict[str, str] | None = None) -> tuple[str, int, str | None, list[str]]:
    route = find_route(url, proxy, env or {})
    text = render(HttpRequest("GET", "/v0/health", b"", None, 1.0), route.prefix, route.host_line)
    return route.host, route.port, route.tls_name, text.decode().strip().split("\r\n")


@pytest.mark.parametrize(
    ("url", "host", "port", "tls_name", "lines"),
    [
        ("http://h:1", "h", 1, None, ["GET /v0/health HTTP/1.1", "host: h:1"]),
        ("http://h", "h", 80, None, ["GET /v0/health HTTP/1.1", "host: h"]),
        ("HTTP://H:1/", "h", 1, None, ["GET /v0/health HTTP/1.1", "host: h:1"]),
        ("https://h/behind/a/proxy", "h", 443, "h", ["GET /behind/a/proxy/v0/health HTTP/1.1", "host: h"]),
        ("http://[::1]:4000", "::1", 4000, None, ["GET /v0/health HTTP/1.1", "host: [::1]:4000"]),
    ],
)
def test_paths_go_behind_the_url(url: str, host: str, port: int, tls_name: str | None, lines: list[str]) -> None:
    assert sent(url) == (host, port, tls_name, lines)


def test_a_proxy_forwards_http_and_lets_https_through() -> None:
    credentials = "proxy-authorization: Basic dTpw"
    host, port, tls_name, lines = sent("http://h:1/x", "http://u:p@proxy:3128")
    assert (host, port, tls_name) == ("proxy", 3128, None)
    assert lines == ["GET http://h:1/x/v0/health HTTP/1.1", "host: h:1", credentials]
    assert sent("https://h", "http://u:p@proxy:3128") == ("proxy", 3128, "h", ["GET /v0/health HTTP/1.1", "host: h"])
    tunnel = find_route("https://h", "http://u:p@proxy:3128", {}).tunnel
    assert tunnel == f"CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\n{credentials}\r\n\r\n".encode()
    assert (
        find_route("https://[::2]:8", "proxy:3128", {}).tunnel == b"CONNECT [::2]:8 HTTP/1.1\r\nhost: [::2]:8\r\n\r\n"
    )


@pytest.mark.parametrize("proxy", ["https://u:secret@proxy", "socks5://proxy:1", "http://"])
def test_a_proxy_of_another_kind_is_refused_without_showing_its_password(proxy: str) -> None:
    with pytest.raises(ValueError, match="http://host:port") as caught:
        find_route("http://h", proxy, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "host", "env", "proxy"),
    [
        ("http", "h", {}, ""),
        ("http", "h", {"HTTP_PROXY": "p"}, "p"),
        ("http", "h", {"HTTP_PROXY": "p", "http_proxy": "q"}, "q"),
        ("http", "h", {"HTTPS_PROXY": "p"}, ""),
        ("https", "h", {"HTTPS_PROXY": "p", "HTTP_PROXY": "q"}, "p"),
        ("https", "h", {"ALL_PROXY": "p"}, "p"),
        ("http", "h", {"HTTP_PROXY": " "}, ""),
        # A server behind CGI puts headers of its client into variables.
        ("http", "h", {"HTTP_PROXY": "p", "REQUEST_METHOD": "GET"}, ""),
        ("http", "h", {"http_proxy": "p", "REQUEST_METHOD": "GET"}, "p"),
        # This machine is not elsewhere.
        ("http", "localhost", {"HTTP_PROXY": "p"}, ""),
        ("http", "127.0.0.9", {"HTTP_PROXY": "p"}, ""),
        ("http", "::1", {"ALL_PROXY": "p"}, ""),
        ("http", "a.b.c", {"HTTP_PROXY": "p", "NO_PROXY": "x, b.c"}, ""),
        ("http", "a.b.c", {"HTTP_PROXY": "p", "NO_PROXY": ".b.c"}, ""),
        ("http", "a.b.c", {"HTTP_PROXY": "p", "NO_PROXY": "*.b.c"}, ""),
        ("http", "ab.c", {"HTTP_PROXY": "p", "NO_PROXY": "b.c"}, "p"),
        ("http", "b.c", {"HTTP_PROXY": "p", "NO_PROXY": "B.C:8"}, ""),
        ("http", "b.c", {"HTTP_PROXY": "p", "NO_PROXY": "b.c:9"}, "p"),
        ("http", "fe80::1", {"HTTP_PROXY": "p", "NO_PROXY": "fe80::1"}, ""),
        ("http", "h", {"HTTP_PROXY": "p", "no_proxy": "*"}, ""),
        ("http", "h", {"HTTP_PROXY": "p", "no_proxy": ""}, "p"),
    ],
)
def test_the_proxy_of_the_environment(scheme: str, host: str, env: dict[str, str], proxy: str) -> None:
    assert proxy_for(scheme, host, 8, env) == proxy


def test_an_option_goes_before_the_environment() -> None:
    env = {"HTTP_PROXY": "http://env:1"}
    assert find_route("http://h", None, env).host == "env"
    assert find_route("http://h", "http://mine:1", env).host == "mine"
    assert find_route("http://h", "", env).host == "h"
