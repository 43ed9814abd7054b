"""From an answered error to an exception, for every code there is."""

import re

import pytest

from tests.unit.client.fakes import Driver, Outcome, Script, plain, refused
from topics.api.error_responses import STATUS_BY_CODE, V1_STATUS_BY_CODE, refusal_of
from topics.model.errors import TopicsError
from topics_client import (
    ApiError,
    ClientError,
    ClientOptions,
    Gap,
    GapError,
    RetryPolicy,
    TopicNotFound,
    UnexpectedAnswer,
    errors,
)

IMPATIENT = ClientOptions(retry=RetryPolicy(deadline_s=0))
# Codes of endpoints that the protocol has and the server learns later.
PLANNED = {"not_a_queue": 409, "router_not_found": 404, "router_cycle": 409, "not_acceptable": 406}
# The codes of subscriptions are spelled in capitals; the client has no calls for them.
STREAMS = {code: status for code, status in V1_STATUS_BY_CODE.items() if code.islower()}


def raised(outcome: Outcome, kind: str = "sync") -> ClientError:
    with pytest.raises(ClientError) as caught:
        Driver(kind, Script([outcome]), IMPATIENT).call("get_topic", "jobs")
    return caught.value


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("code", "status"), sorted({**PLANNED, **STATUS_BY_CODE, **STREAMS}.items()))
def test_every_code_has_a_class_of_its_own(code: str, status: int, kind: str) -> None:
    error = raised(refused(status, code, {"a": 1}), kind)
    assert type(error) is ApiError.by_code[code]
    assert isinstance(error, ApiError)
    assert (error.status, error.code, error.message, error.detail) == (status, code, "no", {"a": 1})
    assert str(error) == f"{code}: no (HTTP status {status})"


@pytest.mark.parametrize(("code", "status"), sorted({**STATUS_BY_CODE, **STREAMS}.items()))
def test_the_words_of_v1_lead_to_the_same_classes(code: str, status: int) -> None:
    made = type("Made", (TopicsError,), {"code": code})("no", a=1)
    reported, body = refusal_of(made, "/v1/stream/jobs")
    error = raised(plain(reported, body))
    assert type(error) is ApiError.by_code[code]
    assert (error.code, error.message, error.detail["a"]) == (code, "no", 1)


@pytest.mark.parametrize(
    ("status", "word", "cls", "code"),
    [
        (400, "bad_request", errors.InvalidRequest, "invalid_request"),
        (404, "not_found", errors.NotFound, "not_found"),
        (409, "conflict", errors.StateRefused, "conflict"),
        (410, "gone", errors.StateRefused, "gone"),
        (429, "overloaded", errors.Throttled, "throttled"),
        (503, "unavailable", errors.RetryLater, "unavailable"),
    ],
)
def test_a_word_of_v1_with_a_reason_of_a_newer_server_keeps_its_branch(
    status: int, word: str, cls: type[ApiError], code: str
) -> None:
    error = raised(refused(status, word, {"reason": "novel"}))
    assert type(error) is cls
    assert (error.status, error.code, error.detail) == (status, code, {"reason": "novel"})


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+) +([a-z_]+)\n", str(errors.__doc__)))
    assert drawn == {cls.__name__: code for code, cls in ApiError.by_code.items()}


def test_a_code_of_a_newer_server_keeps_its_words() -> None:
    error = raised(refused(418, "teapot"))
    assert type(error) is ApiError
    assert (error.status, error.code, error.detail) == (418, "teapot", {})


@pytest.mark.parametrize(
    "content",
    [
        b"", b"<html>Bad gateway</html>", b'{"error":"x"}', b'{"error":{"code":1,"message":"x"}}', b"\xff", b"[" * 5000,
        b'{"detail":"x"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [302, 400, 502])
def test_answer_without_api_errors_is_unexpected(content: bytes, status: int) -> None:
    error = raised(plain(status, content))
    assert isinstance(error, UnexpectedAnswer)
    assert (error.status, error.code) == (status, "unexpected_answer")


@pytest.mark.parametrize("content", [b"", b"hello", b"{}", b'{"topic":1}'])
def test_a_success_that_cannot_be_understood_is_an_error(content: bytes) -> None:
    error = raised(plain(200, content))
    assert isinstance(error, UnexpectedAnswer)
    assert error.status == 200


def test_a_gap_error_has_the_gap() -> None:
    gap = Gap(gap_from=1, gap_to=2, reason="cap", missed_estimate=2, earliest_seq=3, head_seq=3)
    assert str(GapError("jobs", gap)) == "topic jobs: the records 1 to 2 are lost (cap)"
    assert GapError("jobs", gap).gap is gap


def test_the_detail_of_an_error_is_its_own() -> None:
    detail: dict[str, object] = {"topic": "a"}
    error = TopicNotFound(404, "topic_not_found", "no", detail)
    detail["topic"] = "b"
    assert error.detail == {"topic": "a"}
