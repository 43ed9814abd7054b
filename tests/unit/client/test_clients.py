"""The two clients around their calls: the same calls, the headers, the pages, opening and closing."""

import asyncio
import inspect
from typing import Any

import pytest

import topics_client
from tests.unit.client.fakes import APPENDED, Driver, Script, answered
from topics import __version__
from topics_client import AsyncClient, Client, ClientOptions, RetryPolicy
from topics_protocol.config import DEFAULT_URL

# Calls that return an object at once, and wait when that is used.
LAZY = (
    "follow",
    "transaction",
    "watch",
    "ws",
    "topic_pages",
    "all_topics",
    "all_routers",
    "all_consumers",
    "all_schedules",
    "consumer",
    "all_streams",
    "all_routing_keys",
    "search_pages",
    "work",
    "worker",
    "producer",
    "tail_stream",
)

both = pytest.mark.parametrize("kind", ["sync", "async"])


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_both_clients_have_the_same_calls_with_the_same_parameters() -> None:
    assert public(Client) - {"close"} == public(AsyncClient) - {"aclose"}
    for name in sorted(public(Client) - {"close", "closed", "from_env", "options"}):
        ours, theirs = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters, name
        assert ours.__doc__ == theirs.__doc__, name
        assert inspect.iscoroutinefunction(theirs) or name in LAZY, name


def test_both_sockets_have_the_same_calls_with_the_same_parameters() -> None:
    ours, theirs = topics_client.Socket, topics_client.AsyncSocket
    assert public(ours) - {"close"} == public(theirs) - {"aclose"}
    for name in sorted(public(ours) - {"close", "cursors"}):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert inspect.signature(mine).parameters == inspect.signature(other).parameters, name
        assert mine.__doc__ == other.__doc__, name
        assert inspect.iscoroutinefunction(other), name
    assert inspect.signature(ours.publish).return_annotation is topics_client.Appended
    assert [getattr(ours, name).__name__ for name in ("publish", "publish_many", "publish_soon")] == [
        "publish", "publish_many", "publish_soon",
    ]  # fmt: skip


def test_a_call_reports_its_own_signature() -> None:
    described = inspect.signature(Client.append)
    assert list(described.parameters)[:3] == ["self", "topic", "value"]
    assert described.return_annotation is topics_client.Appended
    assert next(iter(inspect.signature(Client().append).parameters)) == "topic"
    assert Client.append.__name__ == "append"
    assert inspect.signature(Client.follow).return_annotation is topics_client.Follower
    assert inspect.signature(AsyncClient.follow).return_annotation is topics_client.AsyncFollower


def test_every_exported_name_exists_and_states_what_it_is() -> None:
    assert len(topics_client.__all__) == len(set(topics_client.__all__))
    for name in topics_client.__all__:
        member = getattr(topics_client, name)
        assert inspect.isclass(member), name
        words = (member.__doc__ or "").strip()
        assert words, name
        # A struct without a docstring would show a generated signature, which explains nothing.
        assert not words.startswith(f"{name}("), name


@pytest.mark.parametrize(
    "cls", [Client, AsyncClient, topics_client.Follower, topics_client.AsyncFollower, topics_client.Record]
)
def test_every_public_member_states_what_it_does(cls: type) -> None:
    for name in public(cls) & set(vars(cls)):
        member = inspect.getattr_static(cls, name)
        if callable(member) or isinstance(member, property | classmethod):
            assert inspect.getdoc(getattr(cls, name)), f"{cls.__name__}.{name}"


@both
def test_every_request_carries_the_standing_headers(kind: str) -> None:
    script = Script([answered(APPENDED)])
    Driver(kind, script, ClientOptions(headers={"X-Tenant": "a"})).call("append", "jobs", 1)
    headers = script.requests[0].headers
    assert headers["authorization"] == "Bearer secret"
    assert headers["content-type"] == "application/json"
    assert headers["accept"] == "application/json"
    assert headers["user-agent"] == f"topics-client/{__version__}"
    assert headers["x-tenant"] == "a"


def test_a_header_of_the_caller_replaces_ours_and_never_the_key() -> None:
    script = Script([answered({"topics": []})])
    headers = {"User-Agent": "mine/1", "Authorization": "Basic x"}
    Driver("sync", script, ClientOptions(headers=headers)).call("list_topics")
    assert script.requests[0].headers["user-agent"] == "mine/1"
    assert script.requests[0].headers["authorization"] == "Bearer secret"


@both
def test_pages_follow_each_other_until_the_last(kind: str) -> None:
    def summary(name: str) -> dict[str, Any]:
        return {
            "topic": name, "head_seq": 1, "earliest_seq": 1, "count": 1, "bytes": 1, "durable": False,
            "effective_priority": 0,
        }  # fmt: skip

    pages = [
        answered({"topics": [summary("a"), summary("b")], "next_cursor": "x+/="}),
        answered({"topics": [], "next_cursor": "y"}),
        answered({"topics": [summary("c")]}),
    ]
    script = Script(pages)
    found = Driver(kind, script).collect("topic_pages", "p", page_size=2)
    assert [len(page.topics) for page in found] == [2, 0, 1]
    queries = [request.query for request in script.requests]
    asked = {"prefix": "p", "page_size": "2"}
    assert queries == [asked, {**asked, "cursor": "x+/="}, {**asked, "cursor": "y"}]
    names = [topic.topic for topic in Driver(kind, Script(pages)).collect("all_topics")]
    assert names == ["a", "b", "c"]


@both
def test_metrics_are_asked_for_as_json(kind: str) -> None:
    script = Script([answered({"topics_topics": 3.0})])
    assert Driver(kind, script).call("metrics") == {"topics_topics": 3.0}
    assert script.requests[0].headers["accept"] == "application/json"


def test_a_request_can_be_sent_as_a_value() -> None:
    with Driver("sync", Script([answered(APPENDED)])).client() as sender:
        assert sender.send(topics_client.requests.append("jobs", 1)).first_seq == 1


def test_a_closed_client_reports_it() -> None:
    closed = Client("http://127.0.0.1:9")
    closed.close()
    with pytest.raises(topics_client.ClientClosed):
        closed.append("jobs", 1)


def test_a_with_block_closes() -> None:
    with Client() as inside:
        assert not inside.closed
    assert inside.closed

    async def scene() -> None:
        async with AsyncClient() as inside:
            assert not inside.closed
        assert inside.closed

    asyncio.run(scene())


def test_the_environment_states_who_and_with_which_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://h:1")
    monkeypatch.setenv("TOPICS_API_KEY", "k")
    assert repr(Client()) == "Client('http://h:1')"
    assert Client()._session.standing["authorization"] == "Bearer k"
    assert Client(api_key="mine")._session.standing["authorization"] == "Bearer mine"
    # A server that is named in code does not get the key of another one.
    assert "authorization" not in Client("http://elsewhere")._session.standing
    with Client.from_env({}) as plain, Client.from_env({"TOPICS_URL": " http://h:2 ", "TOPICS_API_KEY": "k2"}) as given:
        assert repr(plain) == f"Client('{DEFAULT_URL}')"
        assert repr(given) == "Client('http://h:2')"
        assert "authorization" not in plain._session.standing
        assert given._session.standing["authorization"] == "Bearer k2"


def test_blank_variables_count_as_not_set() -> None:
    options = ClientOptions(retry=RetryPolicy(deadline_s=1))
    blank = AsyncClient.from_env({"TOPICS_URL": " ", "TOPICS_API_KEY": ""}, options=options)
    assert repr(blank) == f"AsyncClient('{DEFAULT_URL}')"
    assert blank.options is options


@pytest.mark.parametrize("url", ["", "localhost:4000", "ftp://h", "http://", "http:///x", "//h", "http://h?a=1"])
def test_an_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a server"):
        Client(url)


@pytest.mark.parametrize("key", ["", "line\nbreak", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        Client(api_key=key)
    assert not key or key not in str(caught.value)


def test_a_password_does_not_belong_into_a_url() -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        Client("http://user:secret@h")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("headers", [{"x y": "1"}, {"": "1"}, {"x": "a\r\nb: c"}, {"x": "a\0"}])
def test_a_header_that_would_not_arrive_as_itself_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        Client(options=ClientOptions(headers=headers))


def test_the_key_is_in_no_repr() -> None:
    with Client(api_key="secret") as keyed:
        assert "secret" not in repr(keyed)
        assert "secret" not in repr(keyed._session.address)
