"""Retries: the conditions, the delays, and the content of a repeated request."""

import gzip
import json
import logging
import math

import pytest

from tests.unit.client.fakes import APPENDED, Driver, Outcome, Script, answered, lost, plain, refused, unsent
from topics.testing import ManualClock
from topics_client import (
    ApiError,
    ClientError,
    ClientOptions,
    ConnectionFailed,
    InternalError,
    NotReady,
    ReadOnly,
    RetryPolicy,
    Throttled,
    UnexpectedAnswer,
)
from topics_client.retry import retry_after_s
from topics_client.transport.http1 import Response

both = pytest.mark.parametrize("kind", ["sync", "async"])

LOST = lost()
UNSENT = unsent()


def shown(outcome: object) -> str:
    return f"{outcome.status} {outcome.content!r}" if isinstance(outcome, Response) else str(outcome)


@both
@pytest.mark.parametrize(
    "failure",
    [
        refused(429, "throttled"),
        refused(503, "not_ready"),
        refused(503, "shutting_down"),
        refused(429, "a_newer_word"),
        refused(503, "a_newer_word"),
        plain(429, b"slow down"),
        plain(502, b"<html>"),
        plain(503),
        plain(504),
        LOST,
        UNSENT,
    ],
    ids=shown,
)
def test_what_passes_is_tried_again(failure: Outcome, kind: str) -> None:
    script = Script([failure, failure, answered(APPENDED)])
    driver = Driver(kind, script)
    assert driver.call("append", "jobs", 1).last_seq == 1
    assert len(script.requests) == 3
    assert len(driver.sleeps) == 2


@both
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (refused(400, "invalid_request"), ApiError),
        (refused(401, "unauthorized"), ApiError),
        (refused(404, "topic_not_found"), ApiError),
        (refused(408, "request_timeout"), ApiError),
        (refused(422, "topic_full"), ApiError),
        (refused(500, "internal"), InternalError),
        # The shard stays so until an operator restarts the server, and Retry-After does not change that.
        (refused(503, "read_only", headers={"retry-after": "1"}), ReadOnly),
        (plain(500, b"oops"), UnexpectedAnswer),
    ],
    ids=shown,
)
def test_what_does_not_pass_is_reported_at_once(failure: Outcome, error: type[ClientError], kind: str) -> None:
    driver = Driver(kind, Script([failure]))
    with pytest.raises(error):
        driver.call("append", "jobs", 1)
    assert driver.sleeps == []


@both
@pytest.mark.parametrize("call", [("health",), ("ready",), ("metrics",)])
@pytest.mark.parametrize(
    "failure",
    [refused(503, "not_ready", {"replay_progress": 0.5}), UNSENT],
    ids=shown,
)
def test_a_probe_asks_about_now(call: tuple[str], failure: Outcome, kind: str) -> None:
    driver = Driver(kind, Script([failure]))
    with pytest.raises((NotReady, ConnectionFailed)):
        driver.call(*call)
    assert driver.sleeps == []


KEYLESS = ClientOptions(idempotent_appends=False)
UNKNOWN_OUTCOMES = [LOST, plain(502), plain(503)]


@both
@pytest.mark.parametrize("failure", UNKNOWN_OUTCOMES, ids=shown)
@pytest.mark.parametrize("call", [("append", "jobs", 1), ("delete", "jobs")])
def test_what_may_be_done_and_must_not_be_done_twice_is_not_repeated(
    call: tuple[str, ...], failure: Outcome, kind: str
) -> None:
    driver = Driver(kind, Script([failure]), KEYLESS)
    with pytest.raises((ConnectionFailed, UnexpectedAnswer)):
        driver.call(*call, **({"match": "x"} if call[0] == "delete" else {}))
    assert driver.sleeps == []


@both
@pytest.mark.parametrize(
    "failure",
    [UNSENT, refused(429, "throttled"), refused(503, "not_ready")],
    ids=shown,
)
def test_what_was_certainly_not_done_is_repeated_without_a_key_too(failure: Outcome, kind: str) -> None:
    script = Script([failure, answered(APPENDED)])
    Driver(kind, script, KEYLESS).call("append", "jobs", 1)
    assert script.exhausted


@both
def test_one_append_keeps_its_key_and_another_gets_another(kind: str) -> None:
    script = Script([LOST, refused(429, "throttled"), answered(APPENDED), UNSENT, answered(APPENDED)])
    driver = Driver(kind, script)
    driver.call("append", "jobs", 1)
    driver.call("append_many", "jobs", [1])
    said = [json.loads(request.content) for request in script.requests]
    keys = [each.pop("idempotency_key") for each in said]
    assert keys[0] == keys[1] == keys[2] != keys[3] == keys[4]
    assert len(keys[0]) == 20
    assert said == [{"idempotency_check": True, "records": [{"data": 1}]}] * 5
    assert "idempotency-key" not in script.requests[0].headers


@both
def test_a_key_of_the_caller_is_sent_and_no_other(kind: str) -> None:
    script = Script([LOST, answered(APPENDED)])
    Driver(kind, script).call("append", "jobs", 1, idempotency_key="mine")
    for request in script.requests:
        assert request.content.count(b"idempotency_key") == 1
        assert json.loads(request.content)["idempotency_key"] == "mine"
        assert json.loads(request.content)["idempotency_check"] is True


@both
def test_keys_can_be_switched_off(kind: str) -> None:
    script = Script([answered(APPENDED)])
    Driver(kind, script, KEYLESS).call("append", "jobs", 1)
    assert json.loads(script.requests[0].content) == {"records": [{"data": 1}]}


def test_only_appends_get_a_key() -> None:
    script = Script([answered({"topics": []})])
    Driver("sync", script).call("list_topics")
    assert not script.requests[0].content


@both
def test_the_wait_doubles_up_to_its_maximum(kind: str) -> None:
    policy = RetryPolicy(deadline_s=math.inf, backoff_min_s=0.1, backoff_max_s=1.0)
    driver = Driver(kind, Script([UNSENT] * 7 + [answered(APPENDED)]), ClientOptions(retry=policy))
    driver.call("append", "jobs", 1)
    full = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    for slept, most in zip(driver.sleeps, full, strict=True):
        assert most / 2 < slept <= most
    assert len(set(driver.sleeps)) == len(driver.sleeps)


def test_a_follower_that_fails_for_days_does_not_overflow() -> None:
    policy = RetryPolicy(deadline_s=math.inf)
    driver = Driver("sync", Script([UNSENT] * 3000 + [answered(APPENDED)]), ClientOptions(retry=policy))
    driver.call("append", "jobs", 1)
    assert max(driver.sleeps) <= policy.backoff_max_s


@both
@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        (refused(429, "throttled", {"limit": "max_topics", "max": 1}, {"retry-after": "3"}), 3.0),
        (refused(503, "not_ready", {"replay_progress": 0.1}, {"retry-after": "2"}), 2.0),
        # The detail is exact where the header has to round up.
        (refused(429, "throttled", {"retry_after_ms": 250}, {"retry-after": "1"}), 0.25),
        (plain(503, headers={"retry-after": "4"}), 4.0),
    ],
)
def test_the_server_is_left_alone_for_as_long_as_it_asked(failure: Outcome, asked: float, kind: str) -> None:
    driver = Driver(kind, Script([failure, answered(APPENDED)]))
    driver.call("append", "jobs", 1)
    (slept,) = driver.sleeps
    assert asked <= slept <= asked + RetryPolicy().backoff_min_s


@both
def test_the_deadline_ends_it(kind: str) -> None:
    policy = RetryPolicy(deadline_s=2.0, backoff_min_s=0.5, backoff_max_s=0.5)
    script = Script([refused(429, "throttled")] * 20)
    driver = Driver(kind, script, ClientOptions(retry=policy))
    with pytest.raises(Throttled) as caught:
        driver.call("append", "jobs", 1)
    assert sum(driver.sleeps) <= 2.0 < sum(driver.sleeps) + 0.5
    assert caught.value.__notes__ == [f"gave up after {len(script.requests)} tries"]


@both
def test_a_wait_beyond_the_deadline_is_not_begun(kind: str) -> None:
    driver = Driver(kind, Script([refused(429, "throttled", headers={"retry-after": "31"})]))
    with pytest.raises(Throttled) as caught:
        driver.call("append", "jobs", 1)
    assert driver.sleeps == []
    assert caught.value.retry_after_s == 31.0


@both
def test_a_deadline_of_zero_never_tries_again(kind: str) -> None:
    driver = Driver(kind, Script([UNSENT]), ClientOptions(retry=RetryPolicy(deadline_s=0)))
    with pytest.raises(ConnectionFailed):
        driver.call("get_topic", "jobs")
    assert driver.sleeps == []


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("12", 12.0),
        ("-1", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0.0),
    ],
)
def test_a_retry_after_header_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, ManualClock().now_ms()) == seconds


@both
def test_large_bodies_are_compressed_when_asked(kind: str) -> None:
    script = Script([answered(APPENDED), answered(APPENDED)])
    driver = Driver(kind, script, ClientOptions(gzip=True))
    driver.call("append", "jobs", "x" * 2000)
    driver.call("append", "jobs", "x")
    large, small = script.requests
    assert large.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(large.content))["records"] == [{"data": "x" * 2000}]
    assert "content-encoding" not in small.headers
    assert {request.headers["accept-encoding"] for request in script.requests} == {"gzip"}


@both
def test_nothing_is_compressed_unless_asked(kind: str) -> None:
    script = Script([answered(APPENDED)])
    Driver(kind, script).call("append", "jobs", "x" * 2000)
    assert script.requests[0].headers["accept-encoding"] == "identity"
    assert "content-encoding" not in script.requests[0].headers


def test_a_retry_is_logged_with_its_topic_and_cause_and_without_the_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Driver("sync", Script([UNSENT, UNSENT, answered(APPENDED)])).call("append", "jobs", 1)
    lines = [record for record in caplog.records if record.name.startswith("topics_client")]
    # The first failure may be a connection that was kept for too long; the second is news.
    assert [line.levelname for line in lines] == ["INFO", "WARNING"]
    assert all("POST /v0/topics/jobs failed" in line.message and "refused" in line.message for line in lines)
    assert all("secret" not in str(vars(record)) for record in caplog.records)


@both
def test_a_server_that_never_answered_is_given_up_soon(kind: str) -> None:
    driver = Driver(kind, Script([UNSENT] * 100))
    with pytest.raises(ConnectionFailed):
        driver.call("append", "jobs", 1)
    assert 1.0 < sum(driver.sleeps) <= 2.0


def test_a_server_that_answered_before_is_waited_for() -> None:
    driver = Driver("sync", Script([answered(APPENDED), *[UNSENT] * 15, answered(APPENDED)]))
    with driver.client() as client:
        client.append("jobs", 1)
        client.append("jobs", 1)
    assert sum(driver.sleeps) > 10.0


@both
def test_a_deadline_of_the_caller_holds_for_a_server_that_never_answered(kind: str) -> None:
    driver = Driver(kind, Script([*[UNSENT] * 15, answered(APPENDED)]), ClientOptions(retry=RetryPolicy(deadline_s=60)))
    assert driver.call("append", "jobs", 1).last_seq == 1
    assert sum(driver.sleeps) > 10.0


@both
@pytest.mark.parametrize("last", [UNSENT, refused(429, "throttled"), refused(404, "topic_not_found")], ids=shown)
def test_that_the_last_try_did_nothing_states_nothing_about_the_first(last: Outcome, kind: str) -> None:
    options = ClientOptions(retry=RetryPolicy(deadline_s=1.0))
    for outcomes, maybe_done in (([lost(), *[last] * 50], True), ([last] * 50, False)):
        with pytest.raises(ClientError) as caught:
            Driver(kind, Script(outcomes), options).call("append", "jobs", 1)
        assert caught.value.maybe_done is maybe_done
