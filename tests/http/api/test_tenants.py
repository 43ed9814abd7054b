"""Tenants on one server: resources that a key with prefixes can neither reach nor detect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer, wait_until_ready

KEYS = "boss,acme::acme:,zeta::zeta:,reader:read:acme:"
ONE = {"records": [{"data": 1}]}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("tenants"), api_keys=KEYS) as live:
        yield live


@pytest.fixture(scope="module")
def boss(shared: LiveServer) -> Iterator[httpx.Client]:
    yield from _client(shared, "boss")


@pytest.fixture(scope="module")
def acme(shared: LiveServer) -> Iterator[httpx.Client]:
    yield from _client(shared, "acme")


@pytest.fixture(scope="module")
def zeta(shared: LiveServer) -> Iterator[httpx.Client]:
    yield from _client(shared, "zeta")


def _client(live: LiveServer, token: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {token}"}, timeout=30.0) as client:
        yield client


# Dead letters: the config of a queue names a topic that the server writes into.


def _queue(dead_letter: str) -> dict[str, Any]:
    return {"type": "queue", "max_deliveries": 1, "dead_letter": dead_letter, "lease_ms": 100}


def test_a_put_cannot_point_dead_letters_at_another_tenant(boss: httpx.Client, zeta: httpx.Client) -> None:
    boss.put("/v0/topics/acme:dead", json={})
    assert refused(zeta.put("/v0/topics/zeta:q1", json=_queue("acme:dead")), 403, "forbidden") == {"name": "acme:dead"}
    assert boss.get("/v0/topics/zeta:q1").status_code == 404
    assert zeta.put("/v0/topics/zeta:q1", json=_queue("zeta:dead")).is_success
    assert boss.put("/v0/topics/zeta:q1", json=_queue("acme:dead")).is_success


def test_an_append_that_creates_cannot_either(boss: httpx.Client, zeta: httpx.Client) -> None:
    answer = zeta.post("/v0/topics/zeta:q2", json={**ONE, "config": _queue("acme:dead")})
    assert refused(answer, 403, "forbidden") == {"name": "acme:dead"}
    assert boss.get("/v0/topics/zeta:q2").status_code == 404


def test_nor_a_publish(shared: LiveServer, boss: httpx.Client) -> None:
    with open_socket(shared.url, "zeta") as socket:
        command = {"op": "publish", "topic": "zeta:q3", **ONE, "config": _queue("acme:dead")}
        assert socket.refused(command, "forbidden") == {"name": "acme:dead"}
    assert boss.get("/v0/topics/zeta:q3").status_code == 404


def test_config_may_repeat_a_foreign_dead_letter_topic(boss: httpx.Client, zeta: httpx.Client) -> None:
    """A caller that reads a config, changes one field and puts it back changes one field."""
    boss.put("/v0/topics/zeta:q4", json=_queue("acme:dead"))
    config = zeta.get("/v0/topics/zeta:q4").json()["config"]
    assert zeta.put("/v0/topics/zeta:q4", json={**config, "lease_ms": 5000}).is_success
    assert zeta.put("/v0/topics/zeta:q4", json={**config, "dead_letter": None}).is_success
    refused(zeta.put("/v0/topics/zeta:q4", json=config), 403, "forbidden")


def test_a_redrive_out_of_a_topic_that_the_config_names_does_not_report_its_name(
    boss: httpx.Client, zeta: httpx.Client
) -> None:
    boss.put("/v0/topics/zeta:q5", json=_queue("acme:dead"))
    answer = zeta.post("/v0/topics/zeta:q5/redrive", json={})
    assert refused(answer, 403, "forbidden") == {"name": None}
    assert "acme" not in answer.text


# Metrics.


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
def test_metrics_name_only_what_the_key_may_see(boss: httpx.Client, zeta: httpx.Client, accept: str) -> None:
    boss.put("/v0/topics/acme:m", json={})
    boss.put("/v0/topics/zeta:m", json=_queue("zeta:dead"))
    reported = zeta.get("/v0/metrics", headers={"accept": accept}).text
    assert "zeta:m" in reported
    assert "acme" not in reported
    assert "acme:m" in boss.get("/v0/metrics", headers={"accept": accept}).text


# Errors about routers, which are the only things that lie across tenants.


def test_a_destination_with_another_source_does_not_report_whose(boss: httpx.Client, zeta: httpx.Client) -> None:
    boss.put("/v0/routers/r1", json={"source": "acme:src", "dest": "zeta:fan"})
    wish = {"source": "zeta:mine", "dest": "zeta:fan"}
    answer = zeta.put("/v0/routers/zeta:r1", json=wish)
    detail = refused(answer, 409, "topic_exists_incompatible")
    assert detail == {"reason": "router_dest_fan_in", "dest": "zeta:fan", "source": None}
    assert "acme" not in answer.text
    assert refused(boss.put("/v0/routers/zeta:r1", json=wish), 409, "topic_exists_incompatible")["source"] == "acme:src"


def test_a_cycle_is_reported_without_the_names_of_others(boss: httpx.Client, zeta: httpx.Client) -> None:
    boss.put("/v0/routers/c1", json={"source": "zeta:c1", "dest": "acme:c2"})
    boss.put("/v0/routers/c2", json={"source": "acme:c2", "dest": "zeta:c3"})
    wish = {"source": "zeta:c3", "dest": "zeta:c1"}
    answer = zeta.put("/v0/routers/zeta:c", json=wish)
    assert refused(answer, 409, "router_cycle") == {"cycle": ["zeta:c3", "zeta:c1", None, "zeta:c3"]}
    assert "acme" not in answer.text
    whole = refused(boss.put("/v0/routers/zeta:c", json=wish), 409, "router_cycle")
    assert whole == {"cycle": ["zeta:c3", "zeta:c1", "acme:c2", "zeta:c3"]}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_router_between_others_is_refused_without_their_names(
    boss: httpx.Client, zeta: httpx.Client, method: str
) -> None:
    boss.put("/v0/routers/zeta:foreign", json={"source": "acme:f1", "dest": "acme:f2"})
    body = {"source": "zeta:f1", "dest": "zeta:f2"} if method == "PUT" else None
    answer = zeta.request(method, "/v0/routers/zeta:foreign", json=body)
    assert refused(answer, 403, "forbidden") == {"name": None}
    assert "acme" not in answer.text
    assert boss.get("/v0/routers/zeta:foreign").json()["source"] == "acme:f1"


# Subscriptions.

_DS = "/v1/stream/__ds/subscriptions"


def _subscribe(client: httpx.Client, name: str, body: dict[str, Any]) -> httpx.Response:
    return client.put(f"{_DS}/{name}", json={"type": "pull-wake", **body})


def test_a_subscription_belongs_to_the_tenant_that_made_it(acme: httpx.Client, zeta: httpx.Client) -> None:
    acme.put("/v1/stream/acme:wake", headers={"content-type": "application/json"})
    assert _subscribe(acme, "own", {"pattern": "acme:jobs/*", "wake_stream": "acme:wake"}).status_code == 201
    acme.put("/v1/stream/acme:jobs/1", content=b"x", headers={"content-type": "text/plain"})
    path = f"{_DS}/own"
    for method, rest, body in (
        ("GET", "", None), ("DELETE", "", None), ("POST", "/claim", {"worker": "w"}),
        ("POST", "/streams", {"streams": ["zeta:s"]}), ("DELETE", "/streams/zeta:s", None),
        ("POST", "/ack", {"wake_id": "w", "generation": 0}), ("POST", "/callback", {"wake_id": "w", "generation": 1}),
        ("POST", "/release", {"wake_id": "w", "generation": 0}),
    ):  # fmt: skip
        answer, absent = (zeta.request(method, f"{_DS}/{one}{rest}", json=body) for one in ("own", "nil"))
        assert answer.status_code in (401, 404), (method, rest, answer.text)
        assert answer.text == absent.text.replace("nil", "own"), "as if it were not there"
    refused_ = _subscribe(zeta, "own", {"pattern": "zeta:*", "wake_stream": "zeta:wake"})
    assert (refused_.status_code, refused_.json()["error"]["code"]) == (403, "forbidden")
    found = acme.get(path).json()
    assert [entry["path"] for entry in found["streams"]] == ["acme:jobs/1"]
    assert found["generation"] == 0


def test_a_key_without_prefixes_reaches_all_of_them(boss: httpx.Client, zeta: httpx.Client) -> None:
    assert _subscribe(zeta, "reach", {"streams": ["zeta:s"], "wake_stream": "zeta:wake"}).status_code == 201
    assert boss.get(f"{_DS}/reach").status_code == 200
    assert boss.delete(f"{_DS}/reach").status_code == 204


def test_subscription_without_owner_prefixes_is_hidden_from_tenants(boss: httpx.Client, zeta: httpx.Client) -> None:
    assert _subscribe(boss, "wide", {"pattern": "**", "wake_stream": "wake"}).status_code == 201
    assert zeta.get(f"{_DS}/wide").status_code == 404
    assert zeta.delete(f"{_DS}/wide").status_code == 404
    assert boss.delete(f"{_DS}/wide").status_code == 204


def test_subscription_with_a_foreign_stream_is_hidden_from_tenants(boss: httpx.Client, zeta: httpx.Client) -> None:
    assert _subscribe(zeta, "mixed", {"streams": ["zeta:s"], "wake_stream": "zeta:wake"}).status_code == 201
    assert boss.post(f"{_DS}/mixed/streams", json={"streams": ["acme:s9"]}).status_code == 204
    for method, rest in (("GET", ""), ("POST", "/claim"), ("DELETE", "")):
        answer = zeta.request(method, f"{_DS}/mixed{rest}")
        assert answer.status_code == 404, answer.text
    assert boss.delete(f"{_DS}/mixed/streams/acme:s9").status_code == 204
    assert zeta.get(f"{_DS}/mixed").status_code == 200


def test_a_foreign_stream_is_neither_linked_nor_unlinked(acme: httpx.Client, zeta: httpx.Client) -> None:
    assert _subscribe(zeta, "links", {"streams": ["zeta:s"], "wake_stream": "zeta:wake"}).status_code == 201
    assert zeta.post(f"{_DS}/links/streams", json={"streams": ["acme:s1"]}).status_code == 403
    assert zeta.delete(f"{_DS}/links/streams/acme:s1").status_code == 403


def test_owners_are_kept_over_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    with LiveServer(tmp_path_factory.mktemp("kept"), api_keys=KEYS) as live:
        for token, name, stream in (("acme", "a", "acme:s"), ("zeta", "z", "zeta:s"), ("boss", "b", "zeta:s")):
            with httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {token}"}) as client:
                assert _subscribe(client, name, {"streams": [stream], "wake_stream": stream}).status_code == 201
        live.stop()
        live.start()
        wait_until_ready(live.url)
        with httpx.Client(base_url=live.url, headers={"authorization": "Bearer zeta"}) as client:
            assert [client.get(f"{_DS}/{name}").status_code for name in "azb"] == [404, 200, 404]


# Webhooks: the server must not become a tenant's way into the machine it runs on.


@pytest.mark.parametrize(
    ("keys", "setting", "status"),
    [("boss", None, 400), ("boss", "1", 201), (None, None, 201), (None, "0", 400)],
    ids=["keys", "keys and allowed", "no keys", "no keys and refused"],
)
def test_whether_webhooks_may_call_this_machine_is_a_setting(
    tmp_path: Path, keys: str | None, setting: str | None, status: int
) -> None:
    given = {"api_keys": keys, "streams_webhook_loopback": setting}
    with LiveServer(tmp_path, **{name: value for name, value in given.items() if value is not None}) as live:
        body = {"type": "webhook", "pattern": "a*", "webhook": {"url": "http://127.0.0.1:9/"}}
        headers = {"authorization": "Bearer boss"}
        assert httpx.put(f"{live.url}{_DS}/w", json=body, headers=headers).status_code == status
