"""On a terminal: colours and tables, questions, a live screen, and Ctrl-C."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli.terminal import PATIENCE_S, Terminal, environment, run
from tests.http.live import LiveServer
from topics_client import Client


def test_tables_and_colours_are_for_people(env: dict[str, str], client: Client) -> None:
    client.append("shown", {"text": "x" * 300}, tag="long")
    with Terminal("ls", env=env) as terminal:
        assert terminal.end() == 0
        assert "\x1b[1mTOPIC" in terminal.seen
    with Terminal("tail", "shown", env=env) as terminal:
        assert terminal.end() == 0
        [row] = terminal.plain.splitlines()
        assert len(row) == 100 and row.endswith("…") and "  long  {" in row
    with Terminal("ls", env={**env, "NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert "\x1b" not in terminal.seen
    piped = run("ls", env=env)
    assert "\x1b" not in piped.out and "TOPIC" in piped.out
    assert run("tail", "shown", env=env).out == '{"text":"' + "x" * 300 + '"}\n'


def test_record_texts_cannot_send_terminal_escapes(env: dict[str, str], client: Client) -> None:
    client.append("wild", "\x9b2J\x7f", tag="\x9b31m", meta={"k": "\x9b"})
    for command in (["read", "wild"], ["read", "wild", "-o", "table"]):
        with Terminal(*command, env={**env, "NO_COLOR": "1"}) as terminal:
            assert terminal.end() == 0
            assert "\x9b" not in terminal.seen and "\x7f" not in terminal.seen
    # In a pipe it is data.
    assert run("read", "wild", env=env).out == '"\x9b2J\x7f"\n'


def test_a_deletion_asks(env: dict[str, str], client: Client) -> None:
    client.append("doomed", 1)
    for answer, code in (("\n", 1), ("no\n", 1), ("y\n", 0)):
        with Terminal("rm", "doomed", env=env) as terminal:
            terminal.expect("delete doomed with everything in it? [y/N]")
            assert client.get_topic("doomed").count == 1
            terminal.type(answer)
            assert terminal.end() == code
    assert "doomed" not in {topic.topic for topic in client.all_topics()}


def test_the_live_screen_shows_what_happens_and_ends_by_ctrl_c(env: dict[str, str], client: Client) -> None:
    client.put_topic("busy.jobs", {"type": "queue"})
    client.append_many("busy.jobs", [1, 2, 3])
    client.claim("busy.jobs", "somebody")
    with Terminal("top", "busy", "--every", "100ms", env=env) as terminal:
        terminal.expect("pressure")
        terminal.expect("busy.jobs")
        client.append_many("busy.new", range(10))
        terminal.expect("busy.new")
        terminal.type("\x03")
        assert terminal.end() == 130
        # The screen that was there before is back.
        assert "\x1b[?1049l" in terminal.seen
        assert "Traceback" not in terminal.plain


def test_top_in_a_pipe_is_one_look_after_the_other(env: dict[str, str], client: Client) -> None:
    import json

    client.append("looked", 1)
    done = run("top", "looked", "--once", "--every", "100ms", "-o", "json", env=env)
    [look] = [json.loads(line) for line in done.out.splitlines()]
    assert [row[:2] for row in look["rows"]] == [["looked", 1]]


def test_ctrl_c_ends_a_follower_cleanly(env: dict[str, str], client: Client) -> None:
    client.append("followed", "first")
    with Terminal("tail", "followed", "-f", env=env) as terminal:
        terminal.expect("first")
        client.append("followed", "second")
        terminal.expect("second")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.plain


def test_ctrl_c_in_an_append_states_what_is_in_the_topic(env: dict[str, str], client: Client) -> None:
    with Terminal("append", "typed", "-", "-o", "json", env=env) as terminal:
        terminal.type("1\n2\n")
        terminal.expect('"last_seq":2')
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "2 records acknowledged before this" in terminal.plain
    assert client.get_topic("typed").count == 2


def test_a_server_says_hello_and_stops_by_ctrl_c(tmp_path: Path) -> None:
    env = environment(tmp_path, TOPICS_PORT="0", TOPICS_PROT="1")
    with Terminal("serve", "--data-dir", "here", env=env, cwd=tmp_path) as terminal:
        shown = terminal.expect("tail orders -f")
        assert f"data  {tmp_path / 'here'}" in shown
        assert "keys  off: any client that can reach this address has full access" in shown
        assert "set TOPICS_API_KEYS to require a key" in shown
        assert "variable=TOPICS_PROT  did_you_mean=TOPICS_PORT" in shown
        # The two commands can be typed as they stand.
        url = shown.partition("listens on ")[2].split()[0]
        assert f"python -m topics append orders '{{\"order\":1}}' --url {url}" in shown
        done = run("append", "orders", '{"order":1}', "--url", url, env=environment(tmp_path))
        assert (done.code, done.out) == (0, "1 in orders\n")
        terminal.type("\x03")
        assert terminal.end() == 0


def test_with_keys_it_reports_it(tmp_path: Path) -> None:
    env = environment(tmp_path, TOPICS_PORT="0", TOPICS_API_KEYS="secret-key")
    with Terminal("serve", env=env, cwd=tmp_path) as terminal:
        shown = terminal.expect("tail orders -f")
        assert "keys  on" in shown and "secret-key" not in shown
        terminal.type("\x03")
        assert terminal.end() == 0


def test_its_log_stays_a_log_where_no_person_looks(live: LiveServer) -> None:
    assert "listens on" not in live.log()
    assert all(line.startswith("{") for line in live.log().splitlines())


def test_closed_output_pipe_exits_with_141(env: dict[str, str], client: Client) -> None:
    client.append_many("long", [{"text": "x" * 1000}] * 900)
    client.append_many("long", [{"text": "x" * 1000}] * 900)
    with subprocess.Popen(
        [sys.executable, "-m", "topics", "read", "long"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b'{"text"')
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == b""


def test_a_disk_that_is_full_and_streams_that_are_closed(env: dict[str, str], client: Client) -> None:
    client.append("shown", 1)
    topics = f"{sys.executable} -m topics"

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"{topics} {command}"], env=env, capture_output=True, text=True, check=False, timeout=60
        )

    full = shell("read shown >/dev/full")
    assert (full.returncode, full.stderr) == (1, "topics: No space left on device\n")
    assert (shell("ls >&-").returncode, shell("ls >&-").stderr) == (0, "")
    assert shell("ls 2>&- | grep -c shown").stdout == "1\n"
    assert shell("append shown - <&-").stdout == "appended 0 records to shown\n"


def test_a_port_that_is_taken(live: LiveServer, tmp_path: Path) -> None:
    port = live.url.rpartition(":")[2]
    done = run("serve", "--port", port, env=environment(tmp_path), cwd=tmp_path)
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert "address already in use; --port or TOPICS_PORT chooses another one" in last


def test_a_key_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Terminal("context", "set", "far", "--url", "https://far", "--api-key", "-", env=env) as terminal:
        terminal.expect("the key of far:")
        terminal.type("hidden\n")
        assert terminal.end() == 0
        assert "hidden" not in terminal.plain and "with a key" in terminal.plain
    assert 'api_key = "hidden"' in (tmp_path / ".config" / "topics" / "config.toml").read_text()


def test_completion_for_three_shells(env: dict[str, str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = run("completion", shell, env=env)
        assert done.code == 0
        for word in ("append", "redrive", "cap-records", "data-dir", "exactly_once", "evolve", "--lens", "aggregate"):
            assert word in done.out, (shell, word)
        # Only bash is on every machine.
        if shutil.which(shell):
            checked = subprocess.run([shell, "-n"], input=done.out, text=True, check=False, capture_output=True)
            assert (checked.returncode, checked.stderr) == (0, "")
