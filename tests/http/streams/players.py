"""Clients of a server that is killed under them: writers, followers and one that forks, closes and deletes.

Each repeats unanswered requests until they are answered, as real clients do, and remembers the answers. An answer that
no client may ever get is a problem, which the test shows in the end.
"""

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.http.streams.verdicts import Batch

# Only to fail instead of hanging.
PATIENCE_S = 60.0
PAUSE_S = 0.005
# The server is not there yet, goes just now, or does not know how it went.
_ASK_AGAIN = frozenset((408, 429, 503))

Headers = dict[str, str]


@dataclass(frozen=True)
class Kind:
    """How the entries of a stream are written and read: as JSON values, or as bytes, one entry an append."""

    content_type: str
    most: int
    encode: Callable[[tuple[str, ...]], bytes]
    decode: Callable[[bytes], list[str]]


JSON = Kind("application/json", 3, lambda values: json.dumps(values).encode(), json.loads)
TEXT = Kind(
    "text/plain", 1, lambda values: f"<{values[0]}>".encode(), lambda body: re.findall(r"<([^>]*)>", body.decode())
)


@dataclass
class Stage:
    """The state that all players share."""

    url: str
    over: threading.Event = field(default_factory=threading.Event)
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def line(self) -> Iterator["Line"]:
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as http:
            yield Line(self, http)


@dataclass
class Line:
    """One player's connection."""

    stage: Stage
    http: httpx.Client

    def try_once(self, method: str, path: str, headers: Headers, body: bytes = b"") -> httpx.Response | None:
        """The answer; None when there was none, or none that states how it went."""
        try:
            answer = self.http.request(method, path, headers=headers, content=body)
        except httpx.TransportError:
            time.sleep(PAUSE_S)
            return None
        if answer.status_code in _ASK_AGAIN:
            time.sleep(PAUSE_S)
            return None
        return answer

    def insist(
        self, method: str, path: str, headers: Headers, body: bytes = b"", early: str = ""
    ) -> tuple[httpx.Response, int]:
        """Asks until there is an answer; gives it with how often it took. `early` is a code that means: not yet."""
        give_up = time.monotonic() + PATIENCE_S
        sent = 0
        while time.monotonic() < give_up:
            sent += 1
            answer = self.try_once(method, path, headers, body)
            if answer is not None and not (early and answer.status_code == 409 and early in answer.text):
                return answer, sent
        raise AssertionError(f"{method} {path} was never answered")

    def expect(self, answer: httpx.Response, *statuses: int) -> bool:
        if answer.status_code not in statuses:
            request = answer.request
            sent = {name: value for name, value in request.headers.items() if name.startswith(("stream", "producer"))}
            self.stage.problems.append(
                f"{request.method} {request.url.path} {sent}: {answer.status_code} {answer.text} is none of {statuses}"
            )
        return answer.status_code in statuses


class Writer:
    """Appends to one stream until the play is over."""

    def __init__(self, stage: Stage, path: str, kind: Kind, name: str, seed: int) -> None:
        self.stage = stage
        self.path = path
        self.kind = kind
        self.name = name
        self.luck = random.Random(seed)
        self.batches: list[Batch] = []

    def run(self) -> None:
        with self.stage.line() as line:
            while not self.stage.over.is_set():
                self.step(line)
                time.sleep(self.luck.random() * 2 * PAUSE_S)

    def step(self, line: Line) -> None:
        raise NotImplementedError

    def values(self, number: int) -> tuple[str, ...]:
        return tuple(f"{self.name}/{number}/{place}" for place in range(1 + number % self.kind.most))

    def headers(self, **more: str) -> Headers:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return {"content-type": self.kind.content_type, "stream-key": self.name, **named}

    def remember(
        self, line: Line, number: int, answer: httpx.Response, sent: int, new: int, repeated: tuple[int, ...]
    ) -> None:
        """Keeps a batch that is in the stream once: as `new`, or as one of `repeated`, which only a repetition is."""
        if line.expect(answer, new, *(repeated if sent > 1 else ())):
            values, offset = self.values(number), answer.headers.get("stream-next-offset", "")
            if answer.status_code == new and answer.status_code not in repeated:
                self.batches.append(Batch(self.name, number, values, end=offset))
            else:
                self.batches.append(Batch(self.name, number, values, floor=offset))


class PlainWriter(Writer):
    """Repeats unanswered requests without a mark by which the server could recognize them: at least once, in order."""

    def step(self, line: Line) -> None:
        number = len(self.batches) + 1
        answer, sent = line.insist("POST", self.path, self.headers(), self.kind.encode(self.values(number)))
        if line.expect(answer, 204):
            offset = answer.headers["stream-next-offset"]
            self.batches.append(Batch(self.name, number, self.values(number), most=sent, end=offset))


class CarefulWriter(Writer):
    """The only writer with `Stream-Seq` in its stream: a conflict shows that the repeated entry exists."""

    def step(self, line: Line) -> None:
        number = len(self.batches) + 1
        body = self.kind.encode(self.values(number))
        answer, sent = line.try_once("POST", self.path, self._seq(number), body), 1
        if answer is None:
            # A restarted server must receive the last answered number again, before a later one.
            if number > 1:
                old, _ = line.insist("POST", self.path, self._seq(number - 1), self.kind.encode(("old",)))
                line.expect(old, 409)
            answer, again = line.insist("POST", self.path, self._seq(number), body)
            sent += again
        self.remember(line, number, answer, sent, 204, (409,))
        if answer.status_code == 409 and "sequence_conflict" not in answer.text:
            line.stage.problems.append(f"{self.name}/{number}: {answer.text}")

    def _seq(self, number: int) -> Headers:
        return self.headers(stream_seq=f"{number:08d}")


class IdempotentWriter(Writer):
    """A producer with epochs. Now and then it begins a new one, and finds the old one fenced."""

    def __init__(self, stage: Stage, path: str, kind: Kind, name: str, seed: int) -> None:
        super().__init__(stage, path, kind, name, seed)
        self.epoch = 0
        self.seq = 0
        self.number = 0

    def producer(self, epoch: int, seq: int) -> Headers:
        return self.headers(producer_id=self.name, producer_epoch=str(epoch), producer_seq=str(seq))

    def step(self, line: Line) -> None:
        self.number += 1
        body = self.kind.encode(self.values(self.number))
        headers = self.producer(self.epoch, self.seq)
        answer, before = line.try_once("POST", self.path, headers, body), 1
        if answer is None and self.luck.random() < 0.2:
            # It does not want to know: another run of the producer takes over.
            self.batches.append(Batch(self.name, self.number, self.values(self.number), least=0))
            self._take_over(line)
            return
        if answer is None:
            if self.seq:
                # A restarted server must receive the last answered request again, before the one in doubt is repeated.
                old = self.producer(self.epoch, self.seq - 1)
                line.expect(line.insist("POST", self.path, old, self.kind.encode(("old",)))[0], 204)
            answer, again = line.insist("POST", self.path, headers, body)
            before += again
        self.remember(line, self.number, answer, before, 200, (204,))
        self.seq += 1
        if self.luck.random() < 0.03:
            self._take_over(line)

    def _take_over(self, line: Line) -> None:
        """A new epoch, from 0 on; the old one is fenced as soon as the new one has spoken."""
        self.epoch, self.seq = self.epoch + 1, 0
        self.step(line)
        zombie = self.producer(self.epoch - 1, 0)
        answer, _ = line.insist("POST", self.path, zombie, self.kind.encode(("zombie",)))
        line.expect(answer, 403)


class PipelinedWriter(IdempotentWriter):
    """A producer that has several requests on their way at once, over as many connections."""

    LINES = 3

    def run(self) -> None:
        with ThreadPoolExecutor(self.LINES) as pool, self.stage.line() as line:
            while not self.stage.over.is_set():
                for done in [pool.submit(self._send, line, self.seq + ahead) for ahead in range(self.LINES)]:
                    seq, answer, sent = done.result(PATIENCE_S)
                    self.remember(line, seq + 1, answer, sent, 200, (204,))
                self.seq += self.LINES
                time.sleep(self.luck.random() * 2 * PAUSE_S)

    def _send(self, line: Line, seq: int) -> tuple[int, httpx.Response, int]:
        body = self.kind.encode(self.values(seq + 1))
        answer, sent = line.insist("POST", self.path, self.producer(0, seq), body, early="producer_gap")
        return seq, answer, sent


class Follower:
    """Reads from the start until the stream is closed, by long polls or by events."""

    def __init__(self, stage: Stage, path: str, kind: Kind, live: str) -> None:
        self.stage = stage
        self.path = path
        self.kind = kind
        self.live = live
        self.seen: list[str] = []
        self.reported: list[tuple[str, int]] = []
        """Every offset of an answer, with how many entries had been seen by then."""
        self.offset = "-1"
        self.closed = False

    def run(self) -> None:
        with self.stage.line() as line:
            while not self.closed:
                try:
                    self._poll(line) if self.live == "long-poll" else self._events(line)
                except httpx.TransportError:
                    time.sleep(PAUSE_S)

    def _take(self, values: list[str], offset: str, closed: bool, gap: str) -> None:
        self.seen += values
        self.offset, self.closed = offset, closed
        self.reported.append((offset, len(self.seen)))
        if gap:
            self.stage.problems.append(f"{self.live} {self.path}: a gap {gap} before {offset}")

    def _poll(self, line: Line) -> None:
        answer = line.http.get(self.path, params={"offset": self.offset, "live": "long-poll", "timeout": "1s"})
        if answer.status_code in _ASK_AGAIN:
            time.sleep(PAUSE_S)
        elif line.expect(answer, 200, 204):
            values = self.kind.decode(answer.content) if answer.status_code == 200 else []
            reported = answer.headers
            self._take(
                values, reported["stream-next-offset"], "stream-closed" in reported, reported.get("stream-gap", "")
            )

    def _events(self, line: Line) -> None:
        with line.http.stream("GET", self.path, params={"offset": self.offset, "live": "sse"}) as answer:
            if answer.status_code != 200:
                answer.read()
                time.sleep(PAUSE_S)
                line.expect(answer, *_ASK_AGAIN)
                return
            values: list[str] = []
            event = ""
            for text in answer.iter_lines():
                name, _, value = text.partition(":")
                if name == "event":
                    event = value.strip()
                elif name == "data" and event == "data":
                    values += self.kind.decode(value.encode())
                elif name == "data":
                    # Data without its control event may be there in part: only now it counts.
                    reported = json.loads(value)
                    closed = reported.get("streamClosed", False)
                    self._take(values, reported["streamNextOffset"], closed, reported.get("streamGap", ""))
                    values = []


def read_all(line: Line, path: str, kind: Kind, offset: str = "-1") -> tuple[list[str], httpx.Response]:
    """Everything from an offset on, with the last answer."""
    found: list[str] = []
    while True:
        answer, _ = line.insist("GET", f"{path}?offset={offset}", {})
        if not line.expect(answer, 200):
            return found, answer
        found += kind.decode(answer.content)
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return found, answer


def read_seqs(line: Line, topic: str) -> list[int]:
    """Reads the seqs of all entries, which only the other protocol returns."""
    seqs: list[int] = []
    cursor, caught_up = 0, False
    while not caught_up:
        page = line.http.post(f"/v0/topics/{topic}/diff", json={"from_seq": cursor, "limit": 1000}).json()
        seqs += [record["$seq"] for record in page["records"]]
        cursor, caught_up = page["next_from_seq"], page["caught_up"]
    return seqs
