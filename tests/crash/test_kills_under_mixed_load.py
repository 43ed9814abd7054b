"""A real server is killed in the middle of everything at once: appends over both protocols, keyed and not, reads,
deletes, queues, a router, and a topic that is deleted and made again. Each start has another number of shards. Nothing
that was acknowledged is lost, and nothing is there twice."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.http.live import LiveServer
from tests.simulation.oracle import End
from tests.simulation.real import real_caller, wait_until_ready
from tests.simulation.story import CLIENTS, Story, look_at


async def live(story: Story, server: LiveServer, luck: Random, trace: list[str]) -> None:
    """One life of the server from its clients' view: everything is checked, then all of them run, and in the middle of
    it the server dies."""
    port = int(server.url.rpartition(":")[2])
    quiet = real_caller("quiet", port, trace.append)
    await wait_until_ready(quiet)
    await story.prepare(quiet, healthy=True)
    await story.check(quiet, luck)
    callers = [real_caller(f"c{number}", port, trace.append) for number in range(CLIENTS)]
    crowd = story.begin(callers, luck)
    try:
        await asyncio.sleep(luck.choice((0.05, 0.2, 0.6)))
        look_at(crowd)
        server.kill()
    finally:
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        for caller in (quiet, *callers):
            caller.hang_up()
        await asyncio.sleep(0)


def run(folder: Path, seed: int, kills: int) -> None:
    luck, trace = Random(seed), [f"seed {seed}"]
    story, port = Story(luck), "0"
    try:
        for _ in range(kills + 1):
            shards = str(luck.choice((1, 2, 4)))
            server = LiveServer(
                folder, wal_shards=shards, port=port, snapshot_interval_ms="300", segment_max_events="100"
            )
            with server:
                port = server.url.rpartition(":")[2]
                asyncio.run(live(story, server, luck, trace))
            story.restarted(End.KILL)
            for left in folder.glob("port-*"):
                left.unlink()
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *trace[-20:]])) from error


def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, kills=4)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_a_hundred_kills(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed + 1, kills=100)
