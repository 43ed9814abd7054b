"""Following through everything that happens to a server: restarts, kills, lost records, deleted topics."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

from tests.cli.terminal import PATIENCE_S, environment
from tests.http.live import LiveServer
from topics_client import Client


class Follower:
    """A command that does not end, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._out: Queue[bytes] = Queue()
        self._err: Queue[bytes] = Queue()
        for stream, queue in ((process.stdout, self._out), (process.stderr, self._err)):
            assert stream is not None
            threading.Thread(target=lambda s=stream, q=queue: [q.put(line) for line in s], daemon=True).start()

    def line(self) -> str:
        return self._out.get(timeout=PATIENCE_S).decode().rstrip("\n")

    def reported(self) -> str:
        return self._err.get(timeout=PATIENCE_S).decode().rstrip("\n")


@contextmanager
def following(*arguments: str, env: dict[str, str]) -> Iterator[Follower]:
    process = subprocess.Popen(
        [sys.executable, "-m", "topics", *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield Follower(process)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def test_a_follower_survives_restarts_and_kills(tmp_path: Path) -> None:
    with LiveServer(tmp_path, drain_ms="100") as server, Client(server.url) as client:
        client.put_topic("orders", {"durability": "fsync"})
        client.append("orders", 1)
        with following("tail", "orders", "-f", env=environment(tmp_path, server.url)) as follower:
            assert follower.line() == "1"
            for number, end in ((2, server.stop), (3, server.kill)):
                end()
                assert "the server does not answer" in follower.reported()
                server.start()
                assert follower.reported() == "topics: the server answers again"
                client.append("orders", number)
                assert follower.line() == str(number)
            assert follower.process.poll() is None


def test_a_follower_reports_what_was_lost(tmp_path: Path) -> None:
    with LiveServer(tmp_path, drain_ms="100") as server, Client(server.url) as client:
        client.append("log", 1)
        with following("tail", "log", "-f", "-o", "json", env=environment(tmp_path, server.url)) as follower:
            assert json.loads(follower.line())["data"] == 1
            client.put_topic("log", {"cap_records": 2})
            # One batch of which only the end is left at the first read.
            client.append_many("log", [2, 3, 4, 5, 6])
            assert json.loads(follower.line()) == {"type": "lost", "gap_from": 2, "gap_to": 4, "reason": "cap"}
            assert follower.reported() == "topics: log: the records 2 to 4 are lost (cap)"
            assert [json.loads(follower.line())["data"] for _ in range(2)] == [5, 6]


def test_a_topic_that_is_deleted_ends_it(tmp_path: Path) -> None:
    with LiveServer(tmp_path, drain_ms="100") as server, Client(server.url) as client:
        client.append_many("log", [1, 2, 3])
        env = environment(tmp_path, server.url)
        with following("tail", "log", "-f", env=env) as follower:
            assert [follower.line() for _ in range(3)] == ["1", "2", "3"]
            server.stop()
            assert "the server does not answer" in follower.reported()
            server.start()
            client.delete_topic("log")
            assert follower.reported() == "topics: the server answers again"
            assert "does not exist" in follower.reported()
            assert follower.process.wait(PATIENCE_S) == 1


def test_a_topic_that_was_made_again_while_it_waited_is_reported_and_read_from_its_beginning(tmp_path: Path) -> None:
    with LiveServer(tmp_path, drain_ms="100") as server, Client(server.url) as client:
        client.append_many("log", [1, 2, 3])
        with following("tail", "log", "-f", env=environment(tmp_path, server.url)) as follower:
            assert [follower.line() for _ in range(3)] == ["1", "2", "3"]
            server.stop()
            assert "the server does not answer" in follower.reported()
            # It comes back to a topic that is longer than the one it knows.
            follower.process.send_signal(signal.SIGSTOP)
            server.start()
            client.delete_topic("log")
            client.append_many("log", [4, 5, 6, 7, 8])
            follower.process.send_signal(signal.SIGCONT)
            assert follower.reported() == "topics: the server answers again"
            assert (
                follower.reported() == "topics: log was deleted and created again: reading continues at its beginning"
            )
            assert [follower.line() for _ in range(5)] == ["4", "5", "6", "7", "8"]


def test_a_stream_is_followed_through_a_restart_until_it_is_closed(tmp_path: Path) -> None:
    with LiveServer(tmp_path, drain_ms="100") as server:
        env = environment(tmp_path, server.url)

        def stream(*arguments: str) -> None:
            subprocess.run(
                [sys.executable, "-m", "topics", "stream", *arguments], env=env, check=True, timeout=PATIENCE_S,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip

        stream("create", "chat")
        stream("append", "chat", "1")
        with following("stream", "tail", "chat", "--offset", "-1", env=env) as follower:
            assert follower.line() == "1"
            server.stop()
            assert "the server does not answer" in follower.reported()
            server.start()
            assert follower.reported() == "topics: the server answers again"
            stream("append", "chat", "2", "--close")
            assert follower.line() == "2"
            assert follower.process.wait(PATIENCE_S) == 0
