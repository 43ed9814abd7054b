"""Clients that change what topics and streams are: configs and classes, tags that are deleted, routers in a row with
filters, streams that are forked, closed, deleted and made again while others read their entries."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.clients import Caller
from tests.simulation.oracle import Broken
from topics_client.transport.http1 import Response

SHIFTING = ("shift-0", "shift-1", "shift-2", "shift-3")
FORKED = tuple(f"tree/{n}" for n in range(6))
_CLASSES = ("ephemeral", "memory", "disk", "fsync")


class ChangeTruth:
    """All values ever sent to each stream; a stream and its forks contain no others."""

    def __init__(self) -> None:
        self.sent: set[int] = set()


def _expected(answer: Response, what: str) -> Response:
    if answer.status == 500:
        raise Broken(f"{what} is answered with 500 {answer.content[:200]!r}")
    return answer


async def shift(caller: Caller, truth: ChangeTruth, numbers: Callable[[], int], luck: Random) -> None:
    """Changes a topic, or its content."""
    name = luck.choice(SHIFTING)
    path = f"/v0/topics/{name}"

    async def ask(method: str, target: str, body: Any = None) -> Response:
        return _expected(await caller.ask(method, target, body), f"{method} {target} {body}")

    match luck.randrange(12):
        case 0:
            config: dict[str, Any] = {"durability": luck.choice(_CLASSES), "cap_records": luck.choice((0, 3, 20))}
            config["ttl_ms"] = luck.choice((0, 0, 300, 10_000))
            await ask("PUT", path, config)
        case 1:
            await ask("POST", f"{path}/delete", {"match": f"t{luck.randrange(3)}"})
        case 2:
            info = await ask("GET", path)
            if info.is_success:
                head = json.loads(info.content)["head_seq"]
                await ask("POST", f"{path}/delete", {"before_seq": max(head - luck.choice((0, 3, 10)), 0)})
        case 3 if luck.random() < 0.3:
            await ask("DELETE", path)
        case 4:
            dest = luck.choice([other for other in SHIFTING if other > name] or [f"copy-{luck.randrange(2)}"])
            body: dict[str, Any] = {
                "source": name,
                "dest": dest,
                "guarantee": luck.choice(("exactly_once", "at_least_once")),
            }
            if luck.random() < 0.5:
                body |= {"filter": ["tag", "eq", f"t{luck.randrange(3)}"]}
            if luck.random() < 0.5:
                body |= {"from_seq": 0}
            await ask("PUT", f"/v0/routers/r{luck.randrange(5)}", body)
        case 5 if luck.random() < 0.5:
            await ask("DELETE", f"/v0/routers/r{luck.randrange(5)}")
        case 6:
            page = await ask("POST", f"{path}/diff", {"from_seq": 0, "limit": 1000})
            if page.is_success:
                seqs = [record["$seq"] for record in json.loads(page.content)["records"]]
                if seqs != sorted(set(seqs)):
                    raise Broken(f"{name}: its seqs are {seqs}")
        case _:
            records = [{"data": numbers(), "tag": f"t{luck.randrange(3)}"} for _ in range(luck.choice((1, 1, 4, 30)))]
            truth.sent.update([record["data"] for record in records])  # type: ignore[misc]
            await ask("POST", path, {"records": records})


async def branch(caller: Caller, truth: ChangeTruth, numbers: Callable[[], int], luck: Random) -> None:
    """Makes streams and forks of them, writes, closes and deletes."""
    name = luck.choice(FORKED)
    path = f"/v1/stream/{name}"

    async def ask(method: str, target: str, body: Any = None, headers: str = "") -> Response:
        return _expected(await caller.ask(method, target, body, headers), f"{method} {target} {headers!r}")

    ttl = luck.choice(("", "", "", "stream-ttl: 2\r\n", "stream-ttl: 4000\r\n"))
    match luck.randrange(9):
        case 0:
            await ask("PUT", path, b"", ttl)
        case 1 | 2:
            await ask("PUT", path, b"", f"stream-forked-from: /v1/stream/{luck.choice(FORKED)}\r\n{ttl}")
        case 3 if luck.random() < 0.5:
            await ask("DELETE", path)
        case 4 if luck.random() < 0.3:
            await ask("POST", path, b"", "stream-closed: true\r\n")
        case 5:
            await check_stream(caller, truth, name)
        case _:
            values = [numbers() for _ in range(luck.choice((1, 3)))]
            truth.sent.update(values)
            await ask("POST", path, values)


async def check_stream(caller: Caller, truth: ChangeTruth, name: str) -> None:
    offset, values = "-1", list[int]()
    while True:
        answer = _expected(await caller.ask("GET", f"/v1/stream/{name}?offset={offset}"), f"reading {name}")
        if not answer.is_success:
            break
        values += json.loads(answer.content)
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            break
    if len(set(values)) < len(values) or not truth.sent.issuperset(values):
        raise Broken(f"{name}: {values} has something twice, or that nobody sent")
