"""Schemas, profiles, searches and sums by commands, in pipes and on a terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Terminal, run
from tests.http.test_client_search import LOGS, RENAME, SEARCH, V1, V2
from topics_client import Client

START, END = "2026-03-25T10:00:00Z", "2026-03-25T10:03:00Z"


@pytest.fixture
def logs(client: Client) -> str:
    """A stream to search in, the same for all tests."""
    if not client.list_streams("shop/logs"):
        client.put_stream("shop/logs")
        client.update_schema("shop/logs", schema={"type": "object"}, search=SEARCH)
        client.append_stream("shop/logs", LOGS)
    return "shop/logs"


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_schema_from_its_first_version_to_the_next(env: dict[str, str], client: Client, tmp_path: Path) -> None:
    client.put_stream("a/sales")
    (tmp_path / "lens.json").write_text(json.dumps([RENAME]))
    first = run("schema", "set", "a/sales", "-", "--routing-key", "/buyer", env=env, stdin=json.dumps(V1).encode())
    assert first.out == "a/sales has version 1 from entry 0 on\n"
    client.append_stream("a/sales", [{"id": n, "buyer": f"b{n}"} for n in range(5)])
    again = run("schema", "set", "a/sales", json.dumps(V1), env=env)
    assert again.code == 1 and "`topics schema evolve` sets the next one" in again.err

    evolution = ["a/sales", json.dumps(V2), "--lens", str(tmp_path / "lens.json")]
    shown = run("schema", "preview", *evolution, "--last", "2", env=env)
    assert shown.out == (
        '- {"id":3,"buyer":"b3"}\n+ {"id":3,"customer":"b3"}\n- {"id":4,"buyer":"b4"}\n+ {"id":4,"customer":"b4"}\n'
    )
    assert lines(run("schema", "preview", *evolution, "-o", "json", "-n", "1", env=env).out) == [
        {"before": {"id": 4, "buyer": "b4"}, "after": {"id": 4, "customer": "b4"}}
    ]
    assert client.get_schema("a/sales").current_version == 1
    unsound = ["a/sales", json.dumps(V1), "--lens", str(tmp_path / "lens.json")]
    asked, sent = (run("schema", verb, *unsound, env=env) for verb in ("preview", "evolve"))
    assert asked.code == sent.code == 1
    assert asked.err.rstrip() + " (invalid_request)" == sent.err.rstrip()

    key = ["--routing-key", "/customer", "--required"]
    assert run("schema", "evolve", *evolution, *key, env=env).out == "a/sales has version 2 from entry 5 on\n"
    assert lines(run("stream", "read", "a/sales", "--key", "b1", env=env).out) == [{"id": 1, "customer": "b1"}]
    assert run("stream", "keys", "a/sales", "--after", "b2", env=env).out == "b3\nb4\n"
    reported = lines(run("schema", "show", "a/sales", "-o", "json", env=env).out)[0]
    assert (reported["currentVersion"], reported["routingKey"]) == (2, {"jsonPointer": "/customer", "required": True})
    assert lines(run("schema", "show", "a/sales", "--version", "1", env=env).out) == [V1]
    assert run("schema", "set", "a/sales", "--routing-key", "none", env=env).out == "changed a/sales\n"
    # Entries of two versions ago are shown through both lenses.
    back = json.dumps([{"op": "rename", "from": "/customer", "to": "/buyer"}])
    more = run("schema", "preview", "a/sales", json.dumps(V1), "--lens", back, "-o", "raw", env=env)
    assert lines(more.out) == [{"id": n, "buyer": f"b{n}"} for n in (2, 3, 4)]


def test_a_value_that_does_not_fit_is_named(env: dict[str, str], client: Client) -> None:
    client.put_stream("strict")
    client.update_schema("strict", schema=V1)
    done = run("stream", "append", "strict", "-", env=env, stdin=b'{"id":1,"buyer":"x"}\n{"id":2}\n')
    assert (done.code, done.out) == (1, "")
    assert "value 2 of the batch does not fit the schema" in done.err and done.err.count("\n") == 1
    assert "value 1 of the batch does not fit" in run("append", "strict", '{"id":2}', env=env).err
    assert client.read_stream("strict").values == []


def test_profiles(env: dict[str, str], client: Client) -> None:
    client.put_stream("events")
    assert run("stream", "profile", "events", "-o", "raw", env=env).out == "generic\n"
    given = b'{"kind":"evlog","redactKeys":["pin"]}'
    assert run("stream", "profile", "events", "-", env=env, stdin=given).out == "events has the profile evlog\n"
    assert lines(run("stream", "profile", "events", "-o", "json", env=env).out) == [json.loads(given)]
    assert run("stream", "profile", "events", "generic", env=env).out == "events has the profile generic\n"


def test_hits_are_printed_like_records(env: dict[str, str], logs: str) -> None:
    def search(*arguments: str) -> list[Any]:
        done = run("search", logs, *arguments, env=env)
        assert (done.code, done.err) == (0, "")
        return lines(done.out)

    slow = [one for one in reversed(LOGS) if one["service"] == "a" and one["ms"] >= 40]
    assert search("service:a ms:>=40") == search("service:a", "ms:>=40") == search("-service:b", "ms:>=40") == slow
    assert search("common", "--sort", "ms:asc", "--field", "ms", "--field", "service")[0] == {"ms": 0, "service": "a"}
    (hit,) = search("word7", "-o", "json")
    assert hit["source"] == LOGS[7] and hit["fields"]["ms"] == 70 and hit["offset"] and "stream" not in hit
    assert search("no such word at all") == []
    assert search("common", "OR", "word7", "--rank", "bm25", "--limit", "600")[0] == LOGS[7]
    table = run("search", logs, "word7", "--field", "service", "--field", "ms", "-o", "table", env=env)
    assert table.out == "SERVICE  MS\nb        70\n"


def test_omitted_entries_are_reported_beside_the_hits(env: dict[str, str], client: Client) -> None:
    if not client.list_streams("many"):
        client.put_stream("many")
        client.update_schema("many", schema={"type": "object"}, search=SEARCH)
        client.append_stream("many", [{"ms": n, "service": "x"} for n in range(1203)])
    few = run("search", "many", "--limit", "2", "--total", "--explain", "--sort", "ms:desc", env=env)
    assert lines(few.out) == [{"ms": 1202, "service": "x"}, {"ms": 1201, "service": "x"}]
    reported = few.err.splitlines()
    assert reported[0] == "topics: 1203 hits in all" and reported[-1] == "topics: there are more: use --limit or --all"
    assert "sorted by ms:desc, offset:desc" in reported[1]
    done = run("search", "many", "--all", "--sort", "ms:asc", "--field", "ms", env=env)
    assert [one["ms"] for one in lines(done.out)] == list(range(1203)) and done.err == ""
    done = run("search", "many", "-n", "600", "--field", "ms", env=env)
    assert len(lines(done.out)) == 600


def test_several_streams_are_searched_by_a_pattern(env: dict[str, str], client: Client) -> None:
    for part in ("eu", "us"):
        client.put_stream(f"web/{part}")
        client.update_schema(f"web/{part}", schema={"type": "object"}, search=SEARCH)
        client.append_stream(f"web/{part}", [{**LOGS[n], "message": f"{part} common"} for n in (3, 4)])
    client.put_stream("web/poor")
    poor = {**SEARCH, "fields": {"time": SEARCH["fields"]["time"]}, "rollups": {}}
    client.update_schema("web/poor", schema={"type": "object"}, search=poor)
    done = run("search", "web/*", "ms:>=40", "--sort", "ms:desc", "-o", "table", "--field", "ms", env=env)
    assert done.out == "STREAM  MS\nweb/eu  40\nweb/us  40\n"
    assert "web/poor was skipped" in done.err
    found = lines(run("search", "web/*", "common", "--limit", "3", "-o", "json", env=env).out)
    assert sorted(one["stream"] for one in found) in (["web/eu", "web/eu", "web/us"], ["web/eu", "web/us", "web/us"])
    every = run("search", "web/**", "common", "--all", "--total", env=env)
    assert len(lines(every.out)) == 4 and "4 hits in all" in every.err
    assert run("search", "web/*", "x", "--explain", env=env).code == 2


def test_aggregation_without_a_rollup(env: dict[str, str], logs: str) -> None:
    done = run("aggregate", logs, "--by", "service", "--measure", "ms", "-o", "json", env=env)
    assert {one["key"]["service"]: one["measures"]["ms"]["sum"] for one in lines(done.out)} == {"a": 200, "b": 250}
    assert run("aggregate", logs, "--by", "service", env=env).out == "SERVICE  COUNT\na            5\nb            5\n"
    best = run("aggregate", logs, "--by", "service", "--top", "1", "--filter", "ms:<=20", "-o", "raw", env=env)
    assert best.out == "a\t2\n"
    assert run("aggregate", logs, "load", "--top", "1", env=env).code == 2


def test_sums(env: dict[str, str], logs: str) -> None:
    span = ["--since", START, "--until", END]
    done = run("aggregate", logs, "load", *span, "--by", "service", "--measure", "requests", env=env)
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["START", "SERVICE", "REQUESTS"]
    assert sum(int(row[2]) for row in rows[1:]) == len(LOGS)
    assert rows[1][:2] == ["2026-03-25T10:00:00.000Z", "a"]
    raw = run("aggregate", logs, "load", *span, "--filter", "-service:b", "--measure", "requests", "-o", "raw", env=env)
    assert sum(int(line.split("\t")[1]) for line in raw.out.splitlines()) == 5
    found = lines(run("aggregate", logs, "load", *span, "--interval", "1m", "-o", "json", env=env).out)
    assert max(one["measures"]["latency"]["max"] for one in found) == 90
    assert run("aggregate", logs, "load", env=env).out == ""
    wrong = run("aggregate", logs, "laod", *span, env=env)
    assert wrong.err == "topics: shop/logs has no rollup laod: there are load\n"
    assert "is not one of the rollup's: 1m" in run("aggregate", logs, "load", *span, "--interval", "7s", env=env).err


def test_filters_of_streams(env: dict[str, str], client: Client, logs: str) -> None:
    requested = [one for one in LOGS if one["service"] == "b" and one["ms"] > 50]
    assert lines(run("stream", "read", logs, "--filter", "service:b ms:>50", env=env).out) == requested
    assert (
        lines(run("stream", "read", logs, "--since", "1h", "--filter", "-service:a ms:>50", env=env).out) == requested
    )
    assert run("stream", "read", logs, "--since", "2999-01-01T00:00:00Z", env=env).out == ""
    client.put_stream("closed")
    client.update_schema("closed", schema={"type": "object"}, search=SEARCH)
    client.append_stream("closed", LOGS, close=True)
    tailed = run("stream", "tail", "closed", "--offset", "-1", "--filter", "service:b ms:>50", env=env)
    assert lines(tailed.out) == requested


def test_a_terminal_gets_a_table_in_its_width(env: dict[str, str], logs: str) -> None:
    with Terminal("search", logs, "service:a", "--sort", "ms:asc", env=env) as terminal:
        assert terminal.end() == 0
        head, first, *_ = terminal.plain.splitlines()
        assert head.split() == ["TIME", "SERVICE", "MS", "MESSAGE"]
        assert first.split()[1:3] == ["a", "0"]
        assert "\x1b[1m" in terminal.seen
    client_made = Terminal("schema", "show", logs, env=env)
    with client_made as terminal:
        assert terminal.end() == 0
        assert "rollup load" in terminal.plain


def test_schema_texts_cannot_send_terminal_escapes(env: dict[str, str], client: Client) -> None:
    client.put_stream("evil")
    client.update_schema(
        "evil", schema={"type": "object"}, search=SEARCH, routing_key={"jsonPointer": "/service", "required": False}
    )
    client.append_stream("evil", [{"service": "\x1b[2J", "message": "\x1b]0;owned\x07 boo"}])
    for command in (["search", "evil", "boo"], ["stream", "keys", "evil"]):
        with Terminal(*command, env=env) as terminal:
            assert terminal.end() == 0
            assert "\x1b[2J" not in terminal.seen and "\x07" not in terminal.seen


def test_search_fields_are_inferred_and_installed(env: dict[str, str], client: Client) -> None:
    client.put_stream("a/plain")
    client.append_stream("a/plain", [{"msg": "card declined", "status": 402, "x": 1}, {"msg": "paid", "x": "y"}])
    shown = run("schema", "infer", "a/plain", env=env)
    assert [line.split() for line in shown.out.splitlines()] == [
        ["FIELD", "KIND", "POINTER"], ["msg", "text", "/msg"], ["status", "integer", "/status"],
    ]  # fmt: skip
    assert "left out /x: is integer and keyword" in shown.err and "sampled 2 entries of a/plain" in shown.err
    raw = run("schema", "infer", "a/plain", "-o", "raw", "--last", "10", env=env)
    assert json.loads(raw.out) == {"fields": {"msg": "text", "status": "integer"}}
    assert lines(run("schema", "infer", "a/plain", "-o", "json", env=env).out)[0]["sampled"]["entries"] == 2
    assert client.get_schema("a/plain").search is None
    run("schema", "set", "a/plain", "--search", "-", env=env, stdin=raw.out.encode())
    assert run("search", "a/plain", "declined", "--field", "status", env=env).out == '{"status":402}\n'
    wrong = run("schema", "set", "a/plain", "--search", '{"fields":{"a":"int"}}', env=env)
    assert wrong.code == 1 and '"int" is not a kind of field' in wrong.err
    assert run("schema", "infer", "a/plain", "--last", "0", env=env).code == 2
