"""Storage limits of a key: for every kind of write of its tenant, the data under its prefixes stays within its
limits."""

from collections.abc import Iterator

import httpx
import pytest

from tests.http.api.conftest import refused
from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer

ONE = {"records": [{"data": 1}]}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(
        tmp_path_factory.mktemp("limits"), api_keys="boss,acme::acme:,acme2::acme:,zeta::zeta:", max_topics_per_key="4",
        max_routers_per_key="1", max_bytes_per_key="1000", max_transaction_ids_per_key="2", pipeline="off",
    ) as live:  # fmt: skip
        with client(live, "acme") as acme:
            for name in ("acme:1", "acme:2", "acme:3"):
                acme.post(f"/v0/topics/{name}", json=ONE).raise_for_status()
            acme.put("/v1/stream/acme:s", headers=JSON).raise_for_status()
        yield live


def client(live: LiveServer, token: str) -> httpx.Client:
    return httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {token}"}, timeout=30.0)


def test_every_way_to_create_a_topic_is_refused(shared: LiveServer) -> None:
    for token in ("acme", "acme2", "boss"):
        with client(shared, token) as tenant:
            for answer in (
                tenant.post("/v0/topics/acme:new", json=ONE),
                tenant.put("/v0/topics/acme:new", json={}),
                tenant.post("/v0/topics/acme:new", json={**ONE, "config": {"type": "queue"}}),
                tenant.put("/v0/routers/acme:r", json={"source": "acme:1", "dest": "acme:new"}),
                tenant.put("/v0/routers/acme:r", json={"source": "acme:new", "dest": "acme:newer"}),
            ):
                assert refused(answer, 429, "throttled")["limit"] == "max_topics_per_key"
            answer = tenant.put("/v1/stream/acme:new", headers=JSON)
            assert answer.status_code == 429, answer.text
            with open_socket(shared.url, token) as socket:
                socket.refused({"op": "publish", "topic": "acme:new", **ONE}, "throttled")
            begun = tenant.post("/v0/transactions", json={"id": "t", "sequence": 1}).json()
            given = {"sequence": 1, "attempt": begun["attempt"]}
            staged = tenant.post("/v0/transactions/t/stage", json={**given, "part": "p", "topic": "acme:new", **ONE})
            committed = tenant.post("/v0/transactions/t/commit", json=given)
            assert 429 in (staged.status_code, committed.status_code)
            tenant.post("/v0/transactions/t/abort", json=given)
            assert tenant.get("/v0/topics/acme:new").status_code == 404
    with client(shared, "zeta") as other:
        assert other.post("/v0/topics/zeta:1", json=ONE).is_success
    with client(shared, "boss") as boss:
        assert boss.post("/v0/topics/elsewhere", json=ONE).is_success


def test_bytes_are_refused_whichever_way_they_come(shared: LiveServer) -> None:
    large = {"records": [{"data": "x" * 2000}]}
    with client(shared, "acme") as acme, client(shared, "boss") as boss:
        assert refused(acme.post("/v0/topics/acme:1", json=large), 429, "throttled")["limit"] == "max_bytes_per_key"
        assert acme.post("/v1/stream/acme:s", json=["x" * 2000]).status_code == 429
        with open_socket(shared.url, "acme") as socket:
            socket.refused({"op": "publish", "topic": "acme:1", **large}, "throttled")
        begun = acme.post("/v0/transactions", json={"id": "t", "sequence": 5}).json()
        staged = {"sequence": 5, "attempt": begun["attempt"], "part": "p", "topic": "acme:1", **large}
        refused(acme.post("/v0/transactions/t/stage", json=staged), 429, "throttled")
        acme.post("/v0/transactions/t/abort", json={"sequence": 5, "attempt": begun["attempt"]})
        # Another tenant's router into the prefix is blocked, and reports the reason.
        boss.put("/v0/topics/source", json={}).raise_for_status()
        boss.put("/v0/routers/into", json={"source": "source", "dest": "acme:3"}).raise_for_status()
        boss.post("/v0/topics/source", json=large).raise_for_status()
        for _ in range(2_000):
            if boss.get("/v0/routers/into").json()["blocked"]:
                break
        assert boss.get("/v0/routers/into").json()["blocked"] is True
        assert boss.post("/v0/topics/free", json=large).is_success
        assert acme.post("/v0/topics/acme:1", json=ONE).is_success, "what fits is taken"


def test_routers_and_ids_of_transactions_have_limits(shared: LiveServer) -> None:
    with client(shared, "zeta") as zeta:
        for name in ("zeta:a", "zeta:b", "zeta:c"):
            zeta.put(f"/v0/topics/{name}", json={}).raise_for_status()
        zeta.put("/v0/routers/zeta:1", json={"source": "zeta:a", "dest": "zeta:b"}).raise_for_status()
        answer = zeta.put("/v0/routers/zeta:2", json={"source": "zeta:a", "dest": "zeta:c"})
        assert refused(answer, 429, "throttled")["limit"] == "max_routers_per_key"
        for number in range(2):
            assert zeta.post("/v0/transactions", json={"id": f"t{number}", "sequence": 1}).status_code == 201
        answer = zeta.post("/v0/transactions", json={"id": "t2", "sequence": 1})
        assert refused(answer, 429, "throttled")["limit"] == "max_transaction_ids_per_key"
        assert zeta.post("/v0/transactions", json={"id": "t0", "sequence": 2}).is_success
    with client(shared, "boss") as boss:
        assert boss.post("/v0/transactions", json={"id": "t2", "sequence": 1}).status_code == 201
