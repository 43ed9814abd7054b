"""The requests of each call."""

import dataclasses
import enum
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from topics.model.records import AppendBody
from topics_client import (
    Durability,
    Guarantee,
    NewRecord,
    ProducerMark,
    TagMatch,
    TopicConfigPatch,
    TopicType,
    requests,
)
from topics_client.requests import Request
from topics_client.streams import contents
from topics_protocol.v0 import DeleteBody, DiffBody


def sent(request: Request[Any]) -> tuple[str, str, Any]:
    return request.method, request.target, None if request.body is None else json.loads(request.body)


CASES: list[tuple[Request[Any], tuple[str, str, Any]]] = [
    (requests.put_topic("jobs"), ("PUT", "/v0/topics/jobs", {})),
    (requests.put_topic("jobs", {"ttl_ms": 5}), ("PUT", "/v0/topics/jobs", {"ttl_ms": 5})),
    (
        requests.put_topic("jobs", TopicConfigPatch(type=TopicType.QUEUE, durability=Durability.FSYNC, priority=None)),
        ("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync", "priority": None}),
    ),
    (requests.get_topic("jobs"), ("GET", "/v0/topics/jobs", None)),
    (requests.get_topic("jobs", touch=False), ("GET", "/v0/topics/jobs?touch=false", None)),
    (requests.list_topics(), ("GET", "/v0/topics", None)),
    (
        requests.list_topics("a:b&", page_size=0, cursor="x+/=", touch=True),
        ("GET", "/v0/topics?prefix=a%3Ab%26&page_size=0&cursor=x%2B%2F%3D&touch=true", None),
    ),
    (
        requests.list_topics(contains="chat/", sort="count:desc", total=True, system=True),
        ("GET", "/v0/topics?contains=chat%2F&sort=count%3Adesc&total=true&system=true", None),
    ),
    (requests.delete_topic("jobs"), ("DELETE", "/v0/topics/jobs", None)),
    (requests.delete_topic("jobs", if_empty=True), ("DELETE", "/v0/topics/jobs?if_empty=true", None)),
    (
        requests.put_router("a", "b"),
        (
            "PUT", "/v0/routers/a-%3Eb",
            {
                "source": "a", "dest": "b", "preserve_node": True, "preserve_tag": True, "create_dest": True,
                "allow_cycle": False, "guarantee": "at_least_once",
            },
        ),
    ),
    (
        requests.put_router(
            "a", "b", name="r", preserve_node=False, preserve_tag=False, create_dest=False,
            filter=TagMatch("x", prefix=True), allow_cycle=True, guarantee=Guarantee.EXACTLY_ONCE, from_seq=0,
        ),
        (
            "PUT", "/v0/routers/r",
            {
                "source": "a", "dest": "b", "preserve_node": False, "preserve_tag": False, "create_dest": False,
                "filter": ["tag", "Glob", "x*"], "allow_cycle": True, "guarantee": "exactly_once", "from_seq": 0,
            },
        ),
    ),
    (requests.get_router("a->b"), ("GET", "/v0/routers/a-%3Eb", None)),
    (requests.list_routers(), ("GET", "/v0/routers", None)),
    (
        requests.list_routers("p", source="a", dest="b", page_size=5, cursor="x="),
        ("GET", "/v0/routers?prefix=p&source=a&dest=b&page_size=5&cursor=x%3D", None),
    ),
    (requests.delete_router("r"), ("DELETE", "/v0/routers/r", None)),
    (requests.append("jobs", [1, 2]), ("POST", "/v0/topics/jobs", {"records": [{"data": [1, 2]}]})),
    (requests.append("jobs", None), ("POST", "/v0/topics/jobs", {"records": [{"data": None}]})),
    (requests.append("jobs", msgspec.Raw(b"1.50")), ("POST", "/v0/topics/jobs", {"records": [{"data": 1.5}]})),
    (
        requests.append("jobs", NewRecord(1, tag="a", node="n"), tag="b"),
        ("POST", "/v0/topics/jobs", {"records": [{"data": 1, "tag": "b", "node": "n"}]}),
    ),
    (
        requests.append(
            "jobs", 1, tag="t", node="n", meta={"k": 1}, idempotency_key="key", create=False, config={"ttl_ms": 1},
            disable_backpressure=True, return_seqs=False,
        ),
        (
            "POST", "/v0/topics/jobs?return_seqs=false",
            {
                "records": [{"data": 1, "tag": "t", "node": "n", "meta": {"k": 1}}], "idempotency_key": "key",
                "idempotency_check": True,
                "create": False, "config": {"ttl_ms": 1}, "disable_backpressure": True,
            },
        ),
    ),
    (
        requests.append_many("jobs", (NewRecord("a", tag="t"), "b", {"data": 1}), node="n"),
        (
            "POST", "/v0/topics/jobs",
            {"records": [{"data": "a", "tag": "t"}, {"data": "b"}, {"data": {"data": 1}}], "node": "n"},
        ),
    ),
    (requests.diff("jobs"), ("POST", "/v0/topics/jobs/diff", {"from_seq": 0})),
    (
        requests.diff(
            "jobs", 9, limit=0, node=["a", "b"], include_tags=True, include_meta=False, wait_ms=5, max_batch_bytes=7
        ),
        (
            "POST", "/v0/topics/jobs/diff",
            {
                "from_seq": 9, "limit": 0, "node": ["a", "b"], "include_tags": True, "include_meta": False,
                "wait_ms": 5, "max_batch_bytes": 7,
            },
        ),
    ),
    (requests.delete("jobs"), ("POST", "/v0/topics/jobs/delete", {})),
    (requests.delete("jobs", before_seq=0), ("POST", "/v0/topics/jobs/delete", {"before_seq": 0})),
    (requests.delete("jobs", match="x*"), ("POST", "/v0/topics/jobs/delete", {"match": "x*"})),
    (
        requests.delete("jobs", before_seq=3, match=TagMatch("x", prefix=True)),
        ("POST", "/v0/topics/jobs/delete", {"before_seq": 3, "match": ["tag", "Glob", "x*"]}),
    ),
    (
        requests.delete("jobs", match=["tag", "Eq", "x"]),
        ("POST", "/v0/topics/jobs/delete", {"match": ["tag", "Eq", "x"]}),
    ),
    (requests.health(), ("GET", "/v0/health", None)),
    (requests.ready(), ("GET", "/v0/ready", None)),
    (requests.metrics(), ("GET", "/v0/metrics", None)),
    (requests.metrics_history("1m", 5), ("GET", "/v0/metrics/history?step=1m&points=5", None)),
    (requests.pipeline(), ("GET", "/v0/pipeline", None)),
    (requests.openapi(), ("GET", "/v0/openapi.json", None)),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "expected"), CASES, ids=lambda case: getattr(case, "target", ""))
def test_every_call_becomes_its_request(request_: Request[Any], expected: tuple[str, str, Any]) -> None:
    assert sent(request_) == expected


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (requests.append("t", 1, tag="t", node="n", meta={}, idempotency_key="k", create=True, config={}), AppendBody),
        (requests.append_many("t", [1], node="n", disable_backpressure=True), AppendBody),
        (requests.diff("t", 1, limit=1, node="n", include_tags=True, wait_ms=1, max_batch_bytes=1), DiffBody),
        (requests.delete("t", before_seq=1, match="x"), DeleteBody),
    ],
)
def test_no_field_is_sent_that_the_server_would_not_look_at(request_: Request[Any], body: type[msgspec.Struct]) -> None:
    assert request_.body is not None
    assert set(json.loads(request_.body)) <= set(body.__struct_fields__)
    assert msgspec.json.decode(request_.body, type=body)


@pytest.mark.parametrize(
    ("name", "quoted"),
    [("a:b", "a%3Ab"), ("a/../b", "a%2F..%2Fb"), ("ä ?#%", "%C3%A4%20%3F%23%25"), ("...", "...")],
)
def test_a_name_stays_one_part_of_the_path(name: str, quoted: str) -> None:
    assert requests.get_topic(name).target == f"/v0/topics/{quoted}"
    assert requests.diff(name).target == f"/v0/topics/{quoted}/diff"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a topic name"):
        requests.delete_topic(name)


def test_unencodable_value_raises_before_the_request() -> None:
    with pytest.raises(TypeError):
        requests.append("jobs", object())


@pytest.mark.parametrize("call", [requests.put_topic, lambda name, config: requests.append(name, 1, config=config)])
def test_a_config_key_that_the_server_would_ignore_is_refused(call: Callable[..., Request[Any]]) -> None:
    with pytest.raises(ValueError, match="there is no 'ttl'; did you mean 'ttl_ms'"):
        call("jobs", {"ttl": 5})
    with pytest.raises(ValueError, match="there is no 'colour'"):
        call("jobs", {"colour": "red"})


@pytest.mark.parametrize("records", ["text", b"bytes", {"a": 1}, {}])
def test_a_batch_is_several_records(records: Any) -> None:
    with pytest.raises(TypeError, match="append takes one"):
        requests.append_many("jobs", records)


class Point(msgspec.Struct):
    x: object


@dataclasses.dataclass
class Spot:
    x: object


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": [None, (x,)]}, Point, Spot, lambda x: [{x}]])
@pytest.mark.parametrize(
    "number", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("-NaN5"), Decimal("Infinity"), Decimal("-inf")]
)
def test_a_number_that_json_cannot_state_is_refused(number: Any, wrap: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match="JSON has no word"):
        requests.append("jobs", wrap(number))
    with pytest.raises(ValueError, match="JSON has no word"):
        requests.append_many("jobs", [1, NewRecord(1, meta={"a": wrap(number)})])
    # Null itself, and the word in a text, are fine.
    assert requests.append("jobs", wrap(1.5)).body is not None
    assert requests.append("jobs", {"a": None, "b": "null", "c": "NaN", "d": "-Infinity"}).body is not None
    assert requests.append("jobs", ["NaN", Decimal("1.5"), None]).body is not None


def test_a_payload_given_as_text_is_sent_as_it_stands() -> None:
    assert requests.append("jobs", msgspec.Raw(b'{"a": 1.50}')).body == b'{"records":[{"data":{"a": 1.50}}]}'


class Unknown(enum.Enum):
    """The ways to handle a request whose answer was lost."""

    REPEAT = enum.auto()
    NEVER = enum.auto()
    WITH_KEY = enum.auto()


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (requests.put_topic("t"), Unknown.REPEAT),
        (requests.get_topic("t"), Unknown.REPEAT),
        (requests.list_topics(), Unknown.REPEAT),
        (requests.delete_topic("t"), Unknown.REPEAT),
        (requests.append("t", 1), Unknown.WITH_KEY),
        (requests.append("t", 1, idempotency_key="k"), Unknown.REPEAT),
        (requests.diff("t"), Unknown.REPEAT),
        (requests.delete("t", before_seq=5), Unknown.REPEAT),
        (requests.delete("t", before_seq=5, match="x"), Unknown.REPEAT),
        (requests.delete("t", match="x"), Unknown.NEVER),
    ],
)
def test_repeatable_requests(request_: Request[Any], expected: Unknown) -> None:
    assert request_.repeatable is (expected is Unknown.REPEAT)
    assert request_.needs_key is (expected is Unknown.WITH_KEY)


def test_a_long_poll_may_be_silent_for_as_long_as_it_waits() -> None:
    assert requests.diff("t", wait_ms=1500).wait_s == 1.5
    assert requests.diff("t").wait_s == 0.0


@pytest.mark.parametrize("given", [{"key": " a"}, {"key": "a "}, {"seq": " 1"}, {"producer": ProducerMark("p ", 0, 0)}])
def test_keys_with_outer_blanks_raise_before_the_request(given: Any) -> None:
    with pytest.raises(ValueError, match="blanks at the ends"):
        contents.append_stream("s", [1], **given)
