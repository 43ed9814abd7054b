"""How a server is reached: directly, through a proxy that forwards http, or through a tunnel to https."""

import base64
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The address to connect to, and its headers."""

    url: str
    """The server, for people to read."""
    host: str
    port: int
    """Of the server, or of the proxy before it."""
    tls_name: str | None
    """Whom the certificate must be of; None for a plain connection."""
    proxy: str | None = None
    """Its URL without a password."""
    tunnel: bytes | None = None
    """The request that opens a tunnel through a proxy, sent before anything else."""
    prefix: str
    """In front of the path of every request."""
    host_line: bytes
    """The `Host` header, and for http through a proxy its credentials."""


def find_route(url: str, proxy: str | None, env: Mapping[str, str]) -> Route:
    """The way to a server. `proxy` is the URL of a proxy, empty for none, or None for the environment's."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
    authority = f"[{host}]" if ":" in host else host
    named = authority if parts.port is None else f"{authority}:{parts.port}"
    path = parts.path.rstrip("/")
    host_line = f"host: {named}\r\n"
    between = proxy_for(parts.scheme, host, port, env) if proxy is None else proxy
    if not between:
        return Route(
            url=url, host=host, port=port, tls_name=host if is_tls else None, prefix=path, host_line=host_line.encode()
        )
    through = _proxy_parts(between)
    assert through.hostname is not None
    credentials = _credentials(through)
    tunnel = f"CONNECT {authority}:{port} HTTP/1.1\r\nhost: {authority}:{port}\r\n{credentials}\r\n" if is_tls else None
    return Route(
        url=url,
        host=through.hostname,
        proxy=through.geturl(),
        port=through.port or 80,
        tls_name=host if is_tls else None,
        tunnel=tunnel.encode() if tunnel else None,
        prefix=path if is_tls else f"http://{named}{path}",
        host_line=(host_line if is_tls else host_line + credentials).encode(),
    )


def proxy_for(scheme: str, host: str, port: int, env: Mapping[str, str]) -> str:
    """The proxy that the variables name for a server, or nothing. This machine is never reached through one."""
    if host in _LOOPBACK or host.startswith("127.") or _is_exempt(host, port, _variable("no_proxy", env)):
        return ""
    # A web server's CGI hands a header of its client over as HTTP_PROXY.
    own = (
        env.get("http_proxy", "") if scheme == "http" and "REQUEST_METHOD" in env else _variable(f"{scheme}_proxy", env)
    )
    return own or _variable("all_proxy", env)


def _variable(name: str, env: Mapping[str, str]) -> str:
    return (env.get(name) or env.get(name.upper()) or "").strip()


def _is_exempt(host: str, port: int, listed: str) -> bool:
    for entry in listed.lower().replace(",", " ").split():
        if entry == "*":
            return True
        name, _, only = (
            entry.rpartition(":") if entry.rpartition(":")[2].isdigit() and "::" not in entry else (entry, "", "")
        )
        name = name.lstrip("*").lstrip(".").strip("[]")
        if name and (host == name or host.endswith(f".{name}")) and only in ("", str(port)):
            return True
    return False


def _proxy_parts(url: str) -> SplitResult:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        # Without the URL, which may have a password in it.
        raise ValueError("a proxy must be given as http://host:port; what it forwards may be https all the same")
    return parts


def _credentials(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"proxy-authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
