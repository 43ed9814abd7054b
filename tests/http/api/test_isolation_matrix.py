"""Every route, command and field that can carry a name, tried with a key whose prefixes do not cover it.

The rows are in `isolation_rows`. A request that names another tenant's resources gets 403, or the same answer, word for
word, as for a missing resource. The other tenant's resources do not change, and no answer reveals them.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import msgspec
import pytest

from tests.http.api.isolation_rows import COMMANDS, NAMED_FIELDS, PLAIN_FIELDS, ROWS, Ask
from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer
from topics.api.operator_routes import OpsHandlers
from topics.api.v0.watch import encode_map
from topics.api.v0.websocket_messages import Command
from topics.model.settings import Settings
from topics.server import stream_routes
from topics.streams.subscriptions.subscription import SubscriptionRequest
from topics.testing import ManualClock

KEYS = "boss,acme::acme:,zeta::zeta:"
SECRET = "hush-hush"
"""The payload in the other tenant's records."""
_ROUTES = OpsHandlers(ManualClock(), stream_routes(Settings())).routes()
_LISTED = sorted({f"{method} {path}" for method, path in _ROUTES.listed()})
_ADVICE = (
    "{} is in no row of the matrix of isolation. Add one to tests/http/api/isolation_rows.py: a request for each place "
    "in which a name of a topic, stream, router or subscription can stand (path, query, header, body, config, cursor, "
    "pattern, address), with a name of another tenant there. The answer must be 403, or as if there were no such thing."
)


_RESTLESS = ("performance", "lag_ms", "last_read_ts", "effective_priority", "uptime_ms", "deadline")


def _cursor(name: str) -> str:
    return base64.b64encode(json.dumps({"after": name}).encode()).decode().replace("=", "%3D").replace("+", "%2B")


def _words(kind: str, wid: str) -> dict[str, str]:
    """The names of the other tenant: existing ones, or others of the same length that do not exist."""
    names = {word: f"acme:{kind}-{word}" for word in ("topic", "queue", "stream", "router", "transaction", "schedule")}
    event = encode_map({names["topic"]: 1}).decode()
    return {**names, "sub": f"{kind}-sub", "wid": wid, "cursor": _cursor(names["topic"]), "event": event}


class World:
    """A server with two tenants on it. `zeta` asks, `acme` has something."""

    def __init__(self, live: LiveServer) -> None:
        self.url = live.url
        self.boss, self.acme, self.zeta = (
            httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {key}"}, timeout=10.0)
            for key in ("boss", "acme", "zeta")
        )
        self.real, self.absent = _words("real", ""), _words("none", "wid_" + "A" * 22)
        self._fill()
        self.before = self.state()

    def _fill(self) -> None:
        real, text = self.real, {"content-type": "text/plain"}
        secret = {"records": [{"data": SECRET, "tag": "x"}]}
        for client, path, body in (
            (
                self.acme,
                f"/v0/topics/{real['queue']}",
                {"type": "queue", "dead_letter": "acme:dead", "lease_ms": 3_600_000},
            ),
            (self.acme, f"/v0/routers/{real['router']}", {"source": real["topic"], "dest": "acme:copy"}),
            (self.zeta, "/v0/topics/zeta:q", {"type": "queue"}),
            (self.acme, f"/v0/schedules/{real['schedule']}", {"topic": real["topic"], "cron": "0 0 1 1 *"}),
            (self.zeta, "/v0/topics/zeta:t", {}),
        ):
            assert client.put(path, json=body).is_success
        for name in (real["topic"], real["queue"], "acme:dead"):
            assert self.acme.post(f"/v0/topics/{name}", json=secret).is_success
        assert self.acme.post(f"/v0/topics/{real['queue']}/claim", json={"node": "w"}).json()["count"] == 1
        for client, name in ((self.acme, real["stream"]), (self.zeta, "zeta:s")):
            assert client.put(f"/v1/stream/{name}", headers=text).is_success
        for client, name, sub in ((self.acme, real["stream"], real["sub"]), (self.zeta, "zeta:s", "zeta:sub")):
            requested = {"type": "pull-wake", "streams": [name], "wake_stream": name}
            assert client.put(f"/v1/stream/__ds/subscriptions/{sub}", json=requested).is_success
        assert self.acme.post(f"/v1/stream/{real['stream']}", content=SECRET, headers=text).is_success
        assert self.acme.put(f"/v0/topics/{real['topic']}/consumers/c", json={"last": 0}).is_success
        begun = {"id": real["transaction"], "sequence": 1}
        assert self.acme.post("/v0/transactions", json=begun).status_code == 201
        watch = self.acme.post("/v0/watch", json={"topics": {real["topic"]: {}}}).json()
        self.real["wid"] = watch["wid"]

    def state(self) -> list[object]:
        """The complete state of the other tenant, read with an unrestricted key."""
        names = [*sorted(name for name in self.real.values() if name.startswith("acme:")), "acme:dead", "acme:copy"]
        found: list[object] = []
        for name in names:
            parts = (f"{name}?touch=false", f"{name}/leases", f"{name}/consumers")
            for path in (*(f"/v0/topics/{part}" for part in parts), f"/v0/routers/{name}", f"/v0/schedules/{name}"):
                found.append(_bare(self.boss.get(path)))
            found.append(_bare(self.boss.post(f"/v0/topics/{name}/diff", json={})))
        found.append(_bare(self.boss.get(f"/v1/stream/__ds/subscriptions/{self.real['sub']}")))
        listed = self.boss.get("/v0/topics?prefix=acme:").json()["topics"]
        found.append([topic["topic"] for topic in listed])
        return found

    def close(self) -> None:
        for client in (self.boss, self.acme, self.zeta):
            client.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with LiveServer(tmp_path_factory.mktemp("matrix"), api_keys=KEYS) as live:
        made = World(live)
        yield made
        made.close()


def _bare(answer: httpx.Response) -> object:
    """An answer without its variable parts."""
    if not answer.headers.get("content-type", "").startswith("application/json") or not answer.content:
        return answer.status_code, answer.text
    body = answer.json()
    return answer.status_code, _at_rest(body)


def _at_rest(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _at_rest(one) for name, one in value.items() if name not in _RESTLESS}
    return [_at_rest(one) for one in value] if isinstance(value, list) else value


def _filled(value: Any, words: dict[str, str]) -> Any:
    """A part of a row with the words in their places."""
    if isinstance(value, str):
        for word, name in words.items():
            value = value.replace("{{" + word + "}}", name)
        return value.replace("{own}", "zeta:")
    if isinstance(value, dict):
        return {_filled(key, words): _filled(one, words) for key, one in value.items()}
    return [_filled(one, words) for one in value] if isinstance(value, list) else value


def _send(world: World, method: str, ask: Ask, words: dict[str, str]) -> httpx.Response:
    headers = _filled(dict(ask.headers), words)
    given: dict[str, Any] = {"headers": {**world.zeta.headers, **headers}}
    if headers.get("authorization") == "":
        del given["headers"]["authorization"]
    if isinstance(ask.body, str):
        given["content"] = ask.body
    elif ask.body is not None:
        given["json"] = _filled(ask.body, words)
    # Without the client's own headers, so that one of them can be left out.
    return httpx.request(method, world.url + _filled(ask.path, words), timeout=10.0, **given)


def _neutral(text: str, words: dict[str, str]) -> str:
    """A text without the names that the request itself gave."""
    for word, name in sorted(words.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(name, f"<{word}>")
    return text


@pytest.mark.parametrize("route", _LISTED)
def test_every_route_has_a_row(route: str) -> None:
    assert route in ROWS, _ADVICE.format(route)


_ASKS = [(route, number) for route in ROWS for number in range(len(ROWS[route]))]


@pytest.mark.parametrize(("route", "number"), _ASKS)
def test_a_name_of_another_tenant_is_out_of_reach(world: World, route: str, number: int) -> None:
    ask, method = ROWS[route][number], route.partition(" ")[0]
    answers = {}
    for kind, words in (("real", world.real), ("absent", world.absent)):
        answer = _send(world, method, ask, words)
        assert answer.status_code in (ask.answers or (403,)), answer.text
        reported = _neutral(answer.text, words)
        assert SECRET not in reported
        assert "acme" not in reported, "it names something that the request did not"
        answers[kind] = _neutral(json.dumps(_bare(answer)), words)
    if route != "GET /v0/metrics" and not ask.tells:
        assert answers["real"] == answers["absent"], "it tells whether there is such a thing"
    assert world.state() == world.before


@pytest.mark.parametrize(("op", "number"), [(op, n) for op, rows in COMMANDS.items() for n in range(len(rows))])
def test_a_command_with_a_name_of_another_tenant_is_refused(world: World, op: str, number: int) -> None:
    frames = []
    for words in (world.real, world.absent):
        with open_socket(world.url, "zeta") as socket:
            frame = socket.ask({"op": op, **_filled(COMMANDS[op][number], words)})
            socket.quiet()
        frames.append(_neutral(json.dumps(frame), words))
        assert "acme" not in frames[-1]
        expected = {"unsubscribe": ("unsubscribed", None), "ping": ("pong", None)}.get(op, ("error", "forbidden"))
        assert (frame["op"], frame.get("code")) == expected
    assert frames[0] == frames[1]
    assert world.state() == world.before


def test_every_command_has_a_row() -> None:
    named = {command.__struct_config__.tag for command in get_args(Command)}
    assert named == set(COMMANDS), _ADVICE.format("a command of the WebSocket")


def _types() -> dict[str, type]:
    """Every type of a body by its name."""
    found = {route.operation.body for route in _ROUTES.all if route.operation is not None and route.operation.body}
    return {kind.__name__: kind for kind in (*found, *get_args(Command), SubscriptionRequest)}


@pytest.mark.parametrize("kind", sorted(_types()))
def test_every_field_of_a_body_is_known_to_carry_a_name_or_not(kind: str) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(_types()[kind])}
    unknown = fields - NAMED_FIELDS.get(kind, frozenset()) - PLAIN_FIELDS.get(kind, frozenset())
    assert not unknown, (
        f"{kind} has fields that the matrix of isolation does not know: {', '.join(sorted(unknown))}. If a name can "
        "stand in one, add it to NAMED_FIELDS in tests/http/api/isolation_rows.py, and a request with it to ROWS; "
        "otherwise add it to PLAIN_FIELDS."
    )


def test_every_parameter_of_a_query_is_known_to_carry_a_name_or_not() -> None:
    known = NAMED_FIELDS["query"] | PLAIN_FIELDS["query"]
    asked = {query.name for route in _ROUTES.all if route.operation is not None for query in route.operation.query}
    assert asked <= known, f"add {asked - known} to the fields of 'query' in tests/http/api/isolation_rows.py"
