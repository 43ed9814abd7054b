"""Each mistake is one line on standard error with a remedy, and an exit code; nothing is on standard output."""

import os
from pathlib import Path

import pytest

from tests.cli.terminal import environment, run
from tests.http.live import LiveServer
from tests.http.scripted import answers, http, running
from topics.cli import main
from topics_client import Client

MISTAKES = [
    # Missing resources.
    ("show nothing", 1, "`topics ls` lists them, and `topics create` creates one"),
    ("read nothing", 1, '"nothing" does not exist'),
    ("tail nothing -f", 1, '"nothing" does not exist'),
    ("set nothing --cap-records 1", 1, '"nothing" does not exist'),
    ("rm nothing --yes", 1, "topic nothing does not exist"),
    ("delete nothing --before 2", 1, '"nothing" does not exist'),
    ("append nothing 1 --no-create", 1, '"nothing" does not exist'),
    ("export nothing", 1, '"nothing" does not exist'),
    ("import there no-such-file", 1, "no-such-file: No such file or directory"),
    ("router show nothing", 1, "does not exist"),
    ("router rm nothing", 1, "router nothing does not exist"),
    ("stream read nothing", 1, "does not exist"),
    ("stream tail nothing", 1, "does not exist"),
    ("stream append nothing 1", 1, "does not exist"),
    ("stream rm nothing --yes", 1, "does not exist"),
    ("stream keys nothing", 1, "`topics stream ls` lists them"),
    ("stream show nothing", 1, "`topics stream ls` lists them"),
    ("stream profile nothing", 1, "`topics stream create` creates one"),
    ("schema show nothing", 1, "`topics stream ls` lists them"),
    ("schema set nothing {}", 1, "does not exist"),
    ("schema set there no-such-file", 1, "no-such-file: No such file or directory"),
    ("schema evolve nothing {} --lens []", 1, "does not exist"),
    ("schema preview nothing {} --lens []", 1, "does not exist"),
    ("search nothing x", 1, "`topics stream ls` lists them"),
    ("aggregate nothing sums", 1, "does not exist"),
    ("queue claim nothing", 1, '"nothing" does not exist'),
    ("queue claim there", 1, "`topics create NAME --type queue` creates one"),
    ("context use nothing", 2, "context nothing does not exist: `topics context ls` lists contexts"),
    ("ls --context nothing", 2, "context nothing does not exist"),
    # Resources that exist already.
    ("create there", 1, "there is a topic there already: `topics set` changes its config"),
    ("set there --type queue", 1, "a log cannot become a queue"),
    ("rm there --if-empty", 1, "topic_not_empty"),
    # Invalid values.
    ("append there {", 1, "value 1 is not valid JSON"),
    ("append there " + "[" * 3000 + "]" * 3000, 1, "value 1 is not valid JSON"),
    ("append there 1 -", 2, "give it alone"),
    ("append there - --key k", 2, "--key needs a single batch"),
    ("append there 1 --delay soon", 2, "accepted is a time such as 500ms"),
    ("append there", 2, "requires"),
    ("append", 2, "requires"),
    ("delete there", 2, "no records selected"),
    ("delete there --tag a*b", 2, "only one at the end is allowed"),
    ("read there --from 1 --last 1", 2, "--from, --since and --last exclude each other"),
    ("read there --since yesterday", 2, "accepted is a time such as 30s"),
    ("read there --limit 0", 2, "at least 1"),
    ("read there -o xml", 2, 'Choose from: "table", "json", "raw"'),
    ("read there --since 9999999999999999999999d", 2, "up to 1000000 days"),
    ("read there --since 0001-01-01T00:00:00+14:00", 2, "accepted is a time such as 30s"),
    ("read ..", 2, "'..' is not a topic name"),
    ("append there 1 --tag \udcff", 2, "is not UTF-8 text"),
    ("append there \udcff --text", 1, "value 1 is not valid JSON"),
    ("read \udcff", 2, "is not UTF-8 text"),
    ("read there --filter a=\udcff", 2, "is not UTF-8 text"),
    ("stream append there 1 --key \udcff", 2, "that a header cannot carry"),
    ("backup restore x --at . --gap 9999999999999999999", 2, "--gap must be from 0 to"),
    ("ls --url http://a..b", 2, "is not the URL of a server"),
    (f"ls --url http://{'a' * 64}.example", 2, "is not the URL of a server"),
    ("set there", 2, "no change given"),
    ("set there --cap-bytes much", 2, "accepted is a size such as 4096"),
    ("set there --priority high", 2, "accepted is a whole number, or none"),
    ("set there --durability fsnc", 2, 'Did you mean "fsync"?'),
    ("set there --cap-record 5", 2, "Did you mean --cap-records?"),
    ("create bad|name", 1, "invalid_request"),
    ("rm there", 2, "confirm with --yes"),
    ("router create there there", 1, "invalid_request"),
    ("context set new", 2, "give its address with --url"),
    ("context set new --url ftp://x", 2, "is not the URL of a server"),
    ("export there --format parquet", 2, "give a folder"),
    ("import there --spark", 2, "give a file or folder"),
    ("import there . --no-spark", 2, "is a folder"),
    ("read there --filter x", 2, "such as status=paid"),
    ("tail there --filter =x", 2, "such as status=paid"),
    ("read there --filter /a:", 1, "invalid_request"),
    ("stream create x --ttl 10ms", 2, "whole seconds"),
    ("stream create x --ttl soon", 2, "accepted is a time such as 500ms"),
    ("stream create /", 2, "a stream needs a name"),
    ("stream close nothing", 1, "does not exist"),
    ("stream keys there", 1, "declares no routing key"),
    ("stream profile there evlg", 1, "evlog"),
    ("stream profile there evlog", 1, "before appending data"),
    ("stream profile there {", 1, "is not valid JSON"),
    ("stream read there --offset -1 --since 1h", 2, "--offset and --since exclude each other"),
    ("stream read there --since yesterday", 2, "accepted is a time such as 30s"),
    ("stream read there --filter a:1", 1, "search"),
    ("schema set there", 2, "no change given"),
    ("schema set there {", 1, "the schema is not valid JSON"),
    ("schema set there {}", 1, "empty stream"),
    ("schema set there --required", 2, "--required needs --routing-key"),
    ("schema set there --search {}", 1, "search"),
    ("schema set there - --search -", 2, "standard input, which can be used for one document only"),
    ("schema show there --version 1", 1, "there is none"),
    ("schema show there -o raw", 1, "there is none"),
    ("schema evolve there {}", 2, "--lens"),
    ("schema evolve there {} --lens []", 1, "at least one op"),
    ("schema preview there {} --lens [] --last -1", 2, "from 0 to 1000"),
    ("schema shw there", 2, 'Did you mean "show"?'),
    ("search there x", 1, "search"),
    ("search there --limit 0", 2, "at least 1"),
    ("search there -o xml", 2, 'Choose from: "table", "json", "raw"'),
    ("aggregate there sums", 1, "it declares none"),
    ("aggregate there sums --since soon", 2, "accepted is a time such as 30s"),
    ("serch there x", 2, 'Did you mean "search"?'),
    ("top --every 1ms", 2, "at least 100ms"),
    ("bench --seconds 0s", 2, "must be above 0"),
    ("ls --url nonsense", 2, "is not the URL of a server"),
    ("stream ls --url nonsense", 2, "is not the URL of a server"),
    ("ls --url http://127.0.0.1:9 --context x", 2, "give one of them"),
    ("completion tcsh", 2, 'Choose from: "bash", "zsh", "fish"'),
    ("lss", 2, 'Did you mean "ls"?'),
    ("queue clam jobs", 2, 'Did you mean "claim"?'),
    ("ls --urll x", 2, "Did you mean --url?"),
    ("ls a b", 2, "b"),
    ("verify nowhere", 2, "not a data folder"),
    ("pipeline status --data-dir nowhere", 1, "nowhere is not a data folder"),
    # No server is running. Port 9 is for discarding, and nothing listens on it.
    ("ls --url http://127.0.0.1:9", 4, "`topics serve` starts a server"),
    ("append there 1 --url http://127.0.0.1:9", 4, "http://127.0.0.1:9 does not answer"),
    ("export there --url http://127.0.0.1:9", 4, "does not answer"),
    ("tail there -f --url http://127.0.0.1:9", 4, "does not answer"),
    ("stream ls --url http://127.0.0.1:9", 4, "does not answer"),
    ("read there --url http://127.0.0.1:9", 4, "does not answer"),
    ("tail there --url http://127.0.0.1:9", 4, "does not answer"),
    ("stream read there --url http://127.0.0.1:9", 4, "does not answer"),
    ("bench --url http://127.0.0.1:9", 4, "does not answer"),
    ("top --url http://127.0.0.1:9", 4, "does not answer"),
    ("search there x --url http://127.0.0.1:9", 4, "does not answer"),
    ("schema show there --url http://127.0.0.1:9", 4, "does not answer"),
]


@pytest.fixture
def at_server(live: LiveServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the test stands where a user of the server stands."""
    if "there" not in {topic.topic for topic in client.all_topics()}:
        client.append("there", 1)
    for name in os.environ:
        if name.startswith("TOPICS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOPICS_URL", live.url)
    monkeypatch.setenv("TOPICS_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("at_server")
@pytest.mark.parametrize(("command", "code", "text"), MISTAKES, ids=[command for command, _, _ in MISTAKES])
def test_usage_error_is_one_line_and_an_exit_code(
    command: str, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == code
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("topics: ") and reported.err.count("\n") == 1
    assert text in reported.err


def test_no_mistake_has_changed_anything(client: Client) -> None:
    assert client.get_topic("there").count == 1
    assert [topic.topic for topic in client.all_topics()] == ["there"]


def test_a_server_with_keys_wants_one(tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="boss,reader:read:shop.") as server:
        with Client(server.url, api_key="boss") as client:
            client.append("shop.a", 1)
            client.append("other", 1)
            client.put_topic("shop.jobs", {"type": "queue"})
            client.put_topic("other.jobs", {"type": "queue"})
        env = environment(tmp_path, server.url)
        refused = run("ls", env=env)
        assert (refused.code, refused.out) == (1, "")
        assert "give a key by TOPICS_API_KEY, by a context, or by --api-key" in refused.err
        assert run("ls", "-o", "raw", "--api-key", "boss", env=env).out == "other\nother.jobs\nshop.a\nshop.jobs\n"
        weak = {**env, "TOPICS_API_KEY": "reader"}
        assert run("ls", "-o", "raw", env=weak).out == "shop.a\nshop.jobs\n"
        assert run("queue", "ls", "-o", "raw", env=weak).out == "shop.jobs\n"
        assert run("read", "shop.a", env=weak).out == "1\n"
        for command in (["read", "other"], ["append", "shop.a", "2"], ["rm", "shop.a", "--yes"]):
            done = run(*command, env=weak)
            assert (done.code, done.out) == (1, "")
            assert "the key does not allow it" in done.err
        assert "give a key" in run("stream", "ls", env=env).err
        assert run("stream", "ls", "-o", "raw", env=weak).out == "shop.a\nshop.jobs\n"


def test_unknown_variables_are_reported_and_do_no_harm(env: dict[str, str]) -> None:
    done = run("version", env={**env, "TOPICS_ULR": "x", "TOPICS_DATA_DIRS": "x", "TOPICS_QWERTY": "x"})
    assert done.code == 0
    assert done.err.splitlines() == [
        "topics: TOPICS_DATA_DIRS is unknown; did you mean TOPICS_DATA_DIR?",
        "topics: TOPICS_QWERTY is unknown",
        "topics: TOPICS_ULR is unknown; did you mean TOPICS_URL?",
    ]
    assert run("version", env={**env, "TOPICS_DATA_DIR": "x", "TOPICS_CONTEXT": ""}).err == ""


def test_answer_of_another_server_is_reported(env: dict[str, str], live: LiveServer) -> None:
    done = run("ls", "--url", f"{live.url}/elsewhere", env=env)
    assert done.code == 1
    assert done.err.count("\n") == 1


def test_server_message_is_one_line_without_terminal_escapes(env: dict[str, str]) -> None:
    words = "no\n\x1b[2Jroot@host:~# \x07rm"
    refused = http({"error": {"code": "invalid_request", "message": words}}, status="400 Bad Request")
    with running([answers(refused)]) as server:
        done = run("show", "there", "--url", server.url, env=env)
    assert done.code == 1
    assert done.err == "topics: no �[2Jroot@host:~# �rm (invalid_request)\n"
