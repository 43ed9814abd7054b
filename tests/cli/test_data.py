"""Standard input and output as data: streaming, unchanged bytes, and the effect of an error in the middle."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.terminal import PATIENCE_S, run
from topics_client import Client, NewRecord, TagMatch


def test_payloads_come_back_byte_for_byte(env: dict[str, str], client: Client) -> None:
    lines = ['{ "b" : 1.50, "a":"ä\\u00e4" }', "12345678901234567890123", "[1,  2]", '"x"', "null", "-0.0"]
    given = ("\n".join(lines)).encode()  # The last line has no end.
    assert run("append", "verbatim", "-", env=env, stdin=given).out == "appended 6 records to verbatim\n"
    read = run("read", "verbatim", env=env).out
    assert read.splitlines() == lines
    # One topic into another, by a pipe.
    assert run("append", "verbatim-2", "-", env=env, stdin=read.encode()).code == 0
    assert run("read", "verbatim-2", env=env).out == read
    assert run("export", "verbatim", env=env).out.count('"data":{ "b" : 1.50, "a":"ä\\u00e4" }') == 1


def test_lines_are_appended_as_they_come(env: dict[str, str], client: Client) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "topics", "append", "live", "-", "-o", "raw"],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            for number in (1, 2):
                process.stdin.write(b'{"n":%d}\n\n' % number)
                process.stdin.flush()
                assert process.stdout.readline() == b"%d\n" % number
            assert [record.data["n"] for record in client.diff("live").records] == [1, 2]
            process.stdin.write(b"half of a li")
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 1
        finally:
            process.kill()
    assert client.get_topic("live").count == 2


def test_a_bad_line_is_named_and_those_before_it_are_kept(env: dict[str, str], client: Client) -> None:
    done = run("append", "spoilt", "-", env=env, stdin=b'1\n\n2\n{"a":\n4\n')
    assert (done.code, done.out) == (1, "")
    assert "2 records acknowledged before this" in done.err
    assert "line 4 is not valid JSON" in done.err and "--text" in done.err
    assert [record.data for record in client.diff("spoilt").records] == [1, 2]
    done = run("append", "spoilt", "-", env=env, stdin=b'"\xff"\n')
    assert done.code == 1 and "line 1 is not valid JSON" in done.err


def test_many_lines_are_few_requests(env: dict[str, str], client: Client) -> None:
    before = client.metrics()["topics_http_requests_total"]
    given = "".join(f'{{"n":{n}}}\n' for n in range(25_000)).encode()
    assert run("append", "many", "-", env=env, stdin=given).code == 0
    assert client.metrics()["topics_http_requests_total"] - before < 300
    records = [record.data["n"] for record in client.follow("many", wait_ms=0) if hasattr(record, "data")]
    assert records == list(range(25_000))
    done = run("read", "many", "--from", "24999", "-o", "json", env=env)
    assert [json.loads(line)["seq"] for line in done.out.splitlines()] == [24_999, 25_000]


def test_a_key_appends_once(env: dict[str, str], client: Client) -> None:
    assert run("append", "once", "1", "2", "--key", "k", env=env).out == "1 to 2 in once\n"
    assert run("append", "once", "1", "2", "--key", "k", env=env).out == "1 to 2 in once (was there already)\n"
    assert run("append", "once", "-5", '"-x"', env=env).out == "3 to 4 in once\n"
    assert client.get_topic("once").count == 4


def test_appended_jobs_have_a_priority_and_a_start_time(env: dict[str, str], client: Client) -> None:
    client.put_topic("to-do", {"type": "queue"})
    assert run("append", "to-do", "1", "--run-at", "2090-01-01T00:00:00Z", env=env).code != 0
    assert run("append", "to-do", "1", "--run-at", "soon", env=env).code == 2
    assert run("append", "to-do", '"low"', "--priority", "-2", env=env).code == 0
    assert run("append", "to-do", '"high"', "--priority", "2", "--run-at", "2020-01-01", env=env).code == 0
    assert [job.data for job in client.claim("to-do", "w", max=3).claimed] == ["high", "low"]


def test_where_to_begin(env: dict[str, str], client: Client) -> None:
    client.append_many("places", [NewRecord(n, tag=f"t{n % 3}") for n in range(1, 301)])
    client.delete("places", match=TagMatch("t1"))
    client.delete("places", before_seq=11)

    def read(*arguments: str) -> list[int]:
        done = run("read", "places", *arguments, env=env)
        assert done.code == 0, done.err
        return [int(line) for line in done.out.splitlines()]

    kept = [n for n in range(11, 301) if n % 3 != 1]
    assert read() == kept
    assert read("--from", "290") == [n for n in kept if n >= 290]
    assert read("--last", "150") == kept[-150:]
    assert read("--last", "0") == []
    assert read("--last", "100000") == kept
    assert read("--tag", "t2", "--last", "4") == [n for n in kept if n % 3 == 2][-4:]
    assert read("--tag", "t*", "--limit", "3") == kept[:3]
    assert read("--since", "1h") == kept
    assert read("--since", "2999-01-01T00:00:00Z") == []


def test_since_finds_the_moment(env: dict[str, str], client: Client) -> None:
    for n in range(40):
        client.append("times", n)
    records = client.diff("times").records
    for record in (records[0], records[17], records[-1]):
        moment = record.ts / 1000
        from datetime import UTC, datetime

        text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
        done = run("read", "times", "--since", text, env=env)
        assert done.out.splitlines() == [str(one.data) for one in records if one.ts >= record.ts]


def test_an_export_comes_back_as_it_was(env: dict[str, str], client: Client, tmp_path: Path) -> None:
    client.append_many("out", [NewRecord({"n": 1}, "a", "shop", {"k": [1, 'ä"']}), NewRecord([2]), NewRecord(None)])
    file = tmp_path / "out.jsonl"
    assert run("export", "out", str(file), env=env).out == f"3 records written to {file}\n"
    again = run("export", "out", str(file), env=env)
    assert again.code == 1 and "exists already" in again.err
    assert run("import", "back", str(file), env=env).out == "3 records appended to back\n"
    before, after = (client.diff(topic, include_tags=True).records for topic in ("out", "back"))
    assert [(r.raw, r.tag, r.node, r.meta) for r in after] == [(r.raw, r.tag, r.node, r.meta) for r in before]
    assert run("import", "back-2", "-", env=env, stdin=file.read_bytes()).code == 0
    assert run("export", "back-2", "-", env=env).out.count("\n") == 3
    assert client.get_topic("back-2").count == 3


def test_a_payload_of_several_lines_is_one_line_of_an_export(
    env: dict[str, str], client: Client, tmp_path: Path
) -> None:
    client.append_many("broken", [msgspec.Raw(b'{"a":\n 1,\r\n "b": "x"}'), 2])
    file = tmp_path / "out.jsonl"
    run("export", "broken", str(file), env=env)
    assert file.read_bytes().count(b"\n") == 2
    assert run("import", "mended", str(file), env=env).out == "2 records appended to mended\n"
    assert [record.data for record in client.diff("mended").records] == [{"a": 1, "b": "x"}, 2]


def test_an_import_names_the_bad_line(env: dict[str, str], client: Client, tmp_path: Path) -> None:
    for content in (b'{"data":1}\n{"dat":2}\n', b'{"data":1}\nnonsense\n', b'{"data":1}\n{"data":"\xff"}\n'):
        done = run("import", "bad", env=env, stdin=content)
        assert (done.code, done.out) == (1, "")
        assert "line 2 is not a record" in done.err


def test_an_export_fails_where_records_are_lost_and_leaves_nothing(
    env: dict[str, str], client: Client, tmp_path: Path
) -> None:
    client.put_topic("capped", {"cap_records": 2})
    for n in range(5):
        client.append("capped", n)
    file = tmp_path / "capped.jsonl"
    done = run("export", "capped", str(file), env=env)
    assert done.code == 1
    assert "the records 1 to 3 are lost (cap): --skip-lost continues after them" in done.err
    assert list(tmp_path.iterdir()) == []
    done = run("export", "capped", str(file), "--skip-lost", env=env)
    assert done.code == 0 and "are lost" in done.err
    assert [json.loads(line)["data"] for line in file.read_text().splitlines()] == [3, 4]
    # A read reports it, too, and the JSON output contains it.
    done = run("read", "capped", "-o", "json", env=env)
    assert json.loads(done.out.splitlines()[0]) == {"type": "lost", "gap_from": 1, "gap_to": 3, "reason": "cap"}
    assert "the records 1 to 3 are lost (cap)" in done.err
    assert run("tail", "capped", "--last", "1", env=env).err == ""


def test_bytes_of_a_stream_pass_through(env: dict[str, str]) -> None:
    data = bytes(range(256)) * 5000
    assert run("stream", "create", "blob", "--content-type", "application/x-tar", env=env).code == 0
    appended = subprocess.run(
        [sys.executable, "-m", "topics", "stream", "append", "blob", "-"], env=env, input=data, check=True, timeout=60,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert appended.returncode == 0
    read = subprocess.run(
        [sys.executable, "-m", "topics", "stream", "read", "blob"], env=env, capture_output=True, check=True, timeout=60
    )
    assert read.stdout == data


@pytest.mark.parametrize("name", ["a b/c?d#e", "ä/ö", "%2F"])
def test_names_of_streams_are_taken_as_they_are(env: dict[str, str], name: str) -> None:
    assert run("stream", "create", name, env=env).out == f"created {name}\n"
    assert run("stream", "append", name, "[1,2]", env=env).code == 0
    assert run("stream", "read", name, env=env).out == "[1,2]\n"
    assert name in run("stream", "ls", "-o", "raw", env=env).out.splitlines()


def test_the_last_of_those_that_match(env: dict[str, str], client: Client) -> None:
    records = [NewRecord({"n": n, "even": n % 2 == 0}, tag=f"t-{n % 7}") for n in range(3000)]
    client.append_many("mixed", [*records, *[NewRecord("other")] * 2000])
    client.delete("mixed", match=TagMatch("t-3"))
    assert run("read", "mixed", "--last", "2", env=env).out == '"other"\n"other"\n'

    def numbers(*arguments: str) -> list[int]:
        done = run(*arguments, env=env)
        assert done.code == 0, done.err
        return [json.loads(line)["n"] for line in done.out.splitlines()]

    tagged = [n for n in range(3000) if n % 7 == 5]
    assert numbers("read", "mixed", "--last", "3", "--tag", "t-5") == tagged[-3:]
    assert numbers("tail", "mixed", "-n", "1", "--tag", "t-5") == tagged[-1:]
    assert numbers("read", "mixed", "--last", "9999", "--tag", "t-5") == tagged
    assert numbers("read", "mixed", "--last", "1", "--tag", "t-3") == []
    assert numbers("read", "mixed", "--filter", "n=18") == [18]
    assert numbers("tail", "mixed", "--filter", "even=true", "--tag", "t-6", "-n", "2") == [2974, 2988]
    assert numbers("read", "mixed", "--filter", "even=true", "--filter", "n!=4", "--limit", "3") == [0, 2, 6]
    assert numbers("read", "mixed", "--filter", "/n:<20 -tag:t-5 /even:true", "--filter", "n!=4") == [
        n for n in range(0, 20, 2) if n % 7 not in (3, 5) and n != 4
    ]
    assert numbers("tail", "mixed", "-n", "2", "--filter", "tag:t-6 /even:true") == [2974, 2988]
    assert numbers("read", "mixed", "--filter", "-/n:>2", "--filter", "has:/n", "--limit", "2") == [0, 1]


def test_many_queues_are_listed_without_asking_for_each(env: dict[str, str], client: Client) -> None:
    # More topics than the metrics list.
    for number in range(1005):
        client.append(f"many-{number:04}", 1, config={"type": "queue"} if number % 3 == 0 else None)
    client.claim("many-0003", node="me")
    before = client.metrics()["topics_http_requests_total"]
    done = run("queue", "ls", "many-", "-o", "json", env=env)
    assert client.metrics()["topics_http_requests_total"] - before < 20
    queues = [json.loads(line) for line in done.out.splitlines()]
    assert [queue["queue"] for queue in queues] == [f"many-{number:04}" for number in range(0, 1005, 3)]
    assert queues[1] == {"queue": "many-0003", "ready": 0, "in_flight": 1, "delayed": 0, "dead_lettered": 0}


def test_a_stream_by_commands(env: dict[str, str], client: Client) -> None:
    assert run("stream", "create", "by/hand", "--ttl", "3600", env=env).out == "created by/hand\n"
    assert run("stream", "create", "by/hand", "--ttl", "1h", env=env).out == "by/hand exists already\n"
    given = b'{"n":1}\n{"n":2}\n'
    assert run("stream", "append", "by/hand", "-", "--key", "a", env=env, stdin=given).code == 0
    assert (
        run("stream", "append", "by/hand", "[3,  4]", "--close", env=env).out == "appended to by/hand and closed it\n"
    )
    assert run("stream", "read", "by/hand", env=env).out == '{"n":1}\n{"n":2}\n[3,  4]\n'
    assert run("stream", "read", "by/hand", "--key", "a", env=env).out == '{"n":1}\n{"n":2}\n'
    assert run("stream", "tail", "by/hand", "--offset", "-1", env=env).out == '{"n":1}\n{"n":2}\n[3,  4]\n'
    assert run("stream", "tail", "by/hand", env=env).out == ""
    done = run("stream", "append", "by/hand", "5", env=env)
    assert (done.code, done.out) == (1, "") and "closed" in done.err
    (listed,) = [json.loads(line) for line in run("stream", "ls", "by/", "-o", "json", env=env).out.splitlines()]
    assert (listed["name"], int(listed["next_offset"])) == ("by/hand", 3)
    assert run("stream", "rm", "by/hand", "--yes", env=env).out == "deleted by/hand\n"
