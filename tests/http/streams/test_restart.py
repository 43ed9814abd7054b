"""A killed server, and a stopped one, continues from its state."""

from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready
from tests.http.streams.conftest import append, create, offset_of


@pytest.mark.parametrize("clean", [True, False])
def test_stream_state_survives_a_restart(tmp_path: Path, clean: bool) -> None:
    with LiveServer(tmp_path) as server:
        producer = {"producer_id": "p", "producer_epoch": "1", "producer_seq": "0"}
        with httpx.Client(base_url=server.url) as http:
            create(http, "/v1/stream/a", body=b"one", stream_ttl="1h")
            append(http, "/v1/stream/a", b"two", stream_seq="b", **producer)
            http.put("/v1/stream/f", headers={"stream-forked-from": "/v1/stream/a"})
            append(http, "/v1/stream/f", b"own", stream_closed="true")
            http.delete("/v1/stream/a")
            create(http, "/v1/stream/b", "application/json", b"[1]")
            before = {name: http.get(f"/v1/stream/{name}") for name in ("f", "b")}
        server.stop() if clean else server.kill()
        server.start()
        wait_until_ready(server.url)
        with httpx.Client(base_url=server.url) as http:
            for name, known in before.items():
                found = http.get(f"/v1/stream/{name}")
                assert (found.content, offset_of(found)) == (known.content, offset_of(known))
                assert found.headers["content-type"] == known.headers["content-type"]
            assert http.get("/v1/stream/f").headers["stream-closed"] == "true"
            assert http.head("/v1/stream/f").headers["stream-ttl"] == "3600"
            assert http.get("/v1/stream/a").status_code == 410
            http.delete("/v1/stream/f")
            assert create(http, "/v1/stream/a").status_code == 201


def test_a_producer_goes_on_after_a_kill(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        with httpx.Client(base_url=server.url) as http:
            create(http, "/v1/stream/a")
            for seq in range(3):
                sent = {"producer_id": "p", "producer_epoch": "0", "producer_seq": str(seq)}
                append(http, "/v1/stream/a", b"<%d>" % seq, **sent)
        server.kill()
        server.start()
        wait_until_ready(server.url)
        with httpx.Client(base_url=server.url) as http:
            for seq, status in ((2, 204), (3, 200), (5, 409)):
                sent = {"producer_id": "p", "producer_epoch": "0", "producer_seq": str(seq)}
                assert append(http, "/v1/stream/a", b"<%d>" % seq, **sent).status_code == status
            assert http.get("/v1/stream/a").text == "<0><1><2><3>"


def test_subscriptions_and_their_key_are_there_again(tmp_path: Path) -> None:
    subscription = "/v1/stream/__ds/subscriptions/s"
    with LiveServer(tmp_path) as server:
        with httpx.Client(base_url=server.url) as http:
            create(http, "/v1/stream/wake", "application/json")
            body = {"type": "pull-wake", "pattern": "jobs/*", "wake_stream": "wake"}
            assert http.put(subscription, json=body).status_code == 201
            create(http, "/v1/stream/jobs/1", body=b"x")
            claim = http.post(f"{subscription}/claim", json={"worker": "w"}).json()
            key = http.get("/v1/stream/__ds/jwks.json").json()
        server.kill()
        server.start()
        wait_until_ready(server.url)
        with httpx.Client(base_url=server.url) as http:
            assert http.get("/v1/stream/__ds/jwks.json").json() == key
            assert http.put(subscription, json=body).status_code == 200
            stale = {"wake_id": claim["wake_id"], "generation": claim["generation"], "done": True}
            fenced = http.post(f"{subscription}/ack", json=stale, headers={"authorization": f"Bearer {claim['token']}"})
            assert (fenced.status_code, fenced.json()["error"]["code"]) == (409, "FENCED")
            again = http.post(f"{subscription}/claim", json={"worker": "w"}).json()
            assert again["generation"] > claim["generation"]
            assert again["streams"][0]["path"] == "jobs/1"
            names = [entry["name"] for entry in http.get("/v1/streams").json()]
            assert names == ["jobs/1", "wake"]
            for hidden in ("__ds%2Fsubscriptions", "__ds/subscriptions"):
                assert http.get(f"/v0/topics/{hidden}").status_code == 404
                assert http.get(f"/v1/stream/{hidden}").status_code == 404
