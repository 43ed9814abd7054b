"""Subscriptions over HTTP: webhooks that are really called, workers that really claim."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http.streams.conftest import append, create, offset_of
from tests.http.streams.receivers import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def subscription(http: httpx.Client, name: str) -> Iterator[str]:
    path = f"/v1/stream/__ds/subscriptions/{name}"
    yield path
    http.delete(path)


def reported(http: httpx.Client, subscription: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(subscription).json()
    return found


def test_a_webhook_is_called_again_until_it_takes_the_call(
    http: httpx.Client, name: str, subscription: str, receiver: Receiver
) -> None:
    receiver.answers = [(500, b""), (200, b'{"done": true}')]
    body = {"type": "webhook", "pattern": f"{name}/*", "webhook": {"url": receiver.url}}
    assert http.put(subscription, json=body).status_code == 201
    tail = offset_of(create(http, f"/v1/stream/{name}/a", body=b"x"))
    first, second = receiver.call(), receiver.call()
    assert second["generation"] > first["generation"]
    assert second["streams"][0]["path"] == f"{name}/a"
    for _ in range(1000):
        if reported(http, subscription)["streams"][0]["acked_offset"] == tail:
            return
    raise AssertionError("what the webhook did was not acknowledged")


def test_a_lease_that_ends_without_a_word_is_given_out_again(
    http: httpx.Client, name: str, subscription: str, receiver: Receiver
) -> None:
    body = {"type": "webhook", "streams": [f"{name}/a"], "webhook": {"url": receiver.url}, "lease_ttl_ms": 150}
    http.put(subscription, json=body)
    create(http, f"/v1/stream/{name}/a", body=b"x")
    first, second = receiver.call(), receiver.call()
    assert (first["wake_id"], first["callback_token"]) != (second["wake_id"], second["callback_token"])
    stale = {"wake_id": first["wake_id"], "generation": first["generation"], "done": True}
    answer = httpx.post(
        first["callback_url"], json=stale, headers={"authorization": f"Bearer {first['callback_token']}"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "FENCED")


def test_entries_during_a_lease_are_reported_at_its_end(http: httpx.Client, name: str, subscription: str) -> None:
    create(http, f"/v1/stream/{name}-wake", "application/json")
    http.put(subscription, json={"type": "pull-wake", "pattern": f"{name}/**", "wake_stream": f"{name}-wake"})
    deep = f"{name}/a/b/c"
    first = offset_of(create(http, f"/v1/stream/{deep}", body=b"1"))
    claim = http.post(f"{subscription}/claim", json={"worker": "w"}).json()
    append(http, f"/v1/stream/{deep}", b"2")
    said = {"wake_id": claim["wake_id"], "generation": claim["generation"], "done": True}
    said["acks"] = [{"stream": deep, "offset": first}]
    headers = {"authorization": f"Bearer {claim['token']}"}
    assert http.post(f"{subscription}/ack", json=said, headers=headers).json() == {"ok": True, "next_wake": True}
    assert http.post(f"{subscription}/claim", json={"worker": "w"}).status_code == 200


def test_a_worker_without_the_right_words_is_refused(http: httpx.Client, name: str, subscription: str) -> None:
    http.put(subscription, json={"type": "pull-wake", "streams": [f"{name}/a"], "wake_stream": f"{name}-wake"})
    assert http.post(f"{subscription}/claim", json={}).json()["error"]["code"] == "NO_PENDING_WORK"
    create(http, f"/v1/stream/{name}/a", body=b"1")
    claim = http.post(f"{subscription}/claim", json={"worker": "w"}).json()
    said = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    assert http.post(f"{subscription}/ack", json=said).status_code == 401
    wrong = {"authorization": "Bearer nope"}
    assert http.post(f"{subscription}/ack", json=said, headers=wrong).json()["error"]["code"] == "INVALID_TOKEN"
    right = {"authorization": f"Bearer {claim['token']}"}
    stranger = {**said, "acks": [{"stream": "other", "offset": "0" * 26}]}
    assert http.post(f"{subscription}/ack", json=stranger, headers=right).status_code == 400
    assert http.post(f"{subscription}/release", json=said, headers=right).status_code == 204
    assert http.post(f"{subscription}/release", json=said, headers=right).status_code == 409


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/x", "https://10.0.0.1/x", "https://192.168.1.1/", "https://169.254.169.254/latest", "ftp://a.b/",
        "https://[fd00::1]/", "https://user:pass@example.com/", "http://example.com/", "https://", "nonsense",
        "https://[::ffff:10.0.0.1]/", "https://0.0.0.0/",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_never_called(http: httpx.Client, subscription: str, url: str) -> None:
    answer = http.put(subscription, json={"type": "webhook", "pattern": "*", "webhook": {"url": url}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")


@pytest.mark.parametrize(
    "body",
    [
        {}, {"type": "other"}, {"type": "webhook"}, {"type": "webhook", "pattern": "a"},
        {"type": "pull-wake", "pattern": "a"},
        {"type": "pull-wake", "pattern": "a", "wake_stream": "w", "lease_ttl_ms": 1},
    ],
)  # fmt: skip
def test_half_a_subscription_is_none(http: httpx.Client, subscription: str, body: dict[str, object]) -> None:
    assert http.put(subscription, json=body).status_code == 400
    assert http.get(subscription).json()["error"]["code"] == "SUBSCRIPTION_NOT_FOUND"


def test_another_subscription_of_the_same_id_is_a_conflict(http: httpx.Client, subscription: str) -> None:
    body = {"type": "pull-wake", "pattern": "a", "wake_stream": "w"}
    assert http.put(subscription, json=body).status_code == 201
    assert http.put(subscription, json={**body, "pattern": "b"}).status_code == 409
    assert http.delete(subscription).status_code == 204
    assert http.delete(subscription).status_code == 404


def test_very_many_streams_are_all_reported_of(http: httpx.Client, name: str, subscription: str) -> None:
    """They are described some at a time, with others in between."""
    names = [f"{name}/{number}" for number in range(1200)]
    body = {"type": "pull-wake", "streams": names, "wake_stream": f"{name}-wake"}
    answer = http.put(subscription, json=body)
    assert answer.status_code == 201, answer.text
    for told_of in (answer.json()["streams"], reported(http, subscription)["streams"]):
        assert [stream["path"] for stream in told_of] == names
