"""From the text of a message to a command, or to a refusal that states why not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.api.v0.websocket_messages import BadCommand, Publish, names_of, projection_of, read_command, starts_of
from topics.model.errors import InvalidRequestError
from topics.model.limits import Limits
from topics_protocol.websocket_frames import COMMANDS, Ping, Subscribe, SubscribeFrom, Unsubscribe


def read(**fields: object) -> Any:
    return read_command(json.dumps(fields).encode())


def refusal(text: bytes) -> tuple[str, object]:
    with pytest.raises(BadCommand) as caught:
        read_command(text)
    assert caught.value.cause.message.isprintable()
    assert len(caught.value.cause.message) < 400
    return caught.value.cause.code, caught.value.request_id


def test_every_command_is_read() -> None:
    publish = read(op="publish", topic="t", records=[{"data": {"a": 1}}], request_id=5)
    assert isinstance(publish, Publish) and (publish.topic, publish.request_id, publish.return_seqs) == ("t", 5, True)
    assert bytes(publish.records[0].data) == b'{"a": 1}'
    assert isinstance(read(op="subscribe", topic="t"), Subscribe)
    assert isinstance(read(op="unsubscribe", topic="t"), Unsubscribe)
    assert read(op="ping", request_id=None) == Ping()


@pytest.mark.parametrize(
    ("text", "code", "request_id"),
    [
        (b"", "invalid_json", None),
        (b"nonsense", "invalid_json", None),
        (b"5", "invalid_json", None),
        (b'{"op":"ping"} trailing', "invalid_json", None),
        (b"[" * 10_000, "invalid_json", None),
        (b'{"op":' + b'{"a":' * 10_000, "invalid_json", None),
        (b'{"request_id":"r"}', "invalid_json", "r"),
        (b'{"op":null,"request_id":1}', "invalid_json", 1),
        (b'{"op":["ping"],"request_id":1}', "invalid_json", 1),
        (b'{"op":"PING","request_id":1}', "invalid_json", 1),
        (b'{"op":"p\\ning","request_id":1}', "invalid_json", 1),
        (b'{"op":"ping","request_id":true}', "invalid_request", None),
        (b'{"op":"ping","request_id":{}}', "invalid_request", None),
        (b'{"op":"ping","request_id":"' + b"x" * 257 + b'"}', "invalid_request", None),
        (b'{"op":"subscribe","request_id":"' + b"x" * 300 + b'","topic":5}', "invalid_request", None),
        (b'{"op":"publish","request_id":"r","topic":"t"}', "invalid_request", "r"),
        (b'{"op":"publish","request_id":"r","records":[]}', "invalid_request", "r"),
        (b'{"op":"subscribe","request_id":"r","topics":{"a":5}}', "invalid_request", "r"),
    ],
)
def test_invalid_command_is_refused(text: bytes, code: str, request_id: object) -> None:
    assert refusal(text) == (code, request_id)


def test_a_refusal_names_the_field() -> None:
    with pytest.raises(BadCommand) as caught:
        read(op="publish", topic="t", records=[{"data": 1, "tag": 5}])
    assert caught.value.cause.detail == {"field": "records[0].tag"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["op", "topic", "topics", "records", "request_id", "from_seq", "limit", "node", "config", "create"]
)


@given(st.dictionaries(names, json_values | st.sampled_from(COMMANDS)))
def test_any_object_is_a_command_or_a_refusal(fields: dict[str, object]) -> None:
    try:
        command = read_command(json.dumps(fields).encode())
    except BadCommand as bad:
        assert bad.cause.code in ("invalid_json", "invalid_request")
        assert bad.request_id is None or bad.request_id == fields["request_id"]
    else:
        assert fields["op"] in COMMANDS
        assert command.request_id == fields.get("request_id")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_refusal(text: bytes) -> None:
    with pytest.raises(BadCommand):
        read_command(text)


def test_where_a_subscription_begins() -> None:
    command = Subscribe(
        topic="a", from_seq=3, topics={"a": SubscribeFrom(tail=True), "b": None, "c": SubscribeFrom(from_seq=9)}
    )
    assert starts_of(command) == {
        "a": SubscribeFrom(from_seq=3), "b": SubscribeFrom(), "c": SubscribeFrom(from_seq=9),
    }  # fmt: skip
    for bad in (Subscribe(), Subscribe(topic="a", from_seq=-1), Subscribe(topics={"a": SubscribeFrom(from_seq=2**64)})):
        with pytest.raises(InvalidRequestError):
            starts_of(bad)


def test_projection_of_a_subscription_is_bounded() -> None:
    limits = Limits()
    plain = projection_of(Subscribe(), limits)
    assert (plain.limit, plain.max_bytes, plain.nodes, plain.include_tags) == (1000, 2**20, (), False)
    assert (plain.include_data, plain.include_meta) == (True, True)
    wishes = Subscribe(limit=10**6, max_batch_bytes=2**40, node=["b", "a", "b"], include_data=False)
    bounded = projection_of(wishes, limits)
    assert (bounded.limit, bounded.max_bytes, bounded.nodes) == (1000, 2**23, ("a", "b"))
    assert (bounded.include_data, bounded.include_meta) == (False, False)
    assert projection_of(Subscribe(include_data=False, include_meta=True), limits).include_meta
    assert projection_of(Subscribe(limit=2**32, max_batch_bytes=2**64), limits) == projection_of(
        Subscribe(max_batch_bytes=2**23), limits
    )
    for bad in (Subscribe(limit=-1), Subscribe(max_batch_bytes=-1)):
        with pytest.raises(InvalidRequestError):
            projection_of(bad, limits)


def test_the_same_wishes_share_a_feed() -> None:
    limits = Limits()
    one, other = (projection_of(Subscribe(node=node), limits) for node in (["a", "b"], ["b", "a"]))
    assert one == other and hash(one) == hash(other)


def test_unsubscribe_lists_distinct_topics() -> None:
    assert names_of(Unsubscribe(topic="a", topics=["b", "a", "b"])) == ["a", "b"]
    with pytest.raises(InvalidRequestError):
        names_of(Unsubscribe())
