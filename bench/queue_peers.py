"""The servers of the queue benchmark: our own, BullMQ on redis, and NATS JetStream with pull consumers."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

from bench.install import CACHE, new_nats, queue_npm_folder
from bench.peers import (
    BOTH,
    Server,
    launch_nats,
    launch_redis,
    launch_topics,
    nats_version,
    our_version,
    redis_version,
)
from bench.protocols import PAYLOAD_BYTES, Nats, Redis, Topics, ask_http, payload

_BULLMQ_SCRIPT = Path(__file__).resolve().parent / "queue_bullmq.mjs"


class TopicsQueue(Topics):
    """A queue of this project's server. The leases log is not durable, which is the default and matches the others."""

    protocol = "topics-queue"

    def make(self, address: str, place: str) -> None:
        ask_http(address, "PUT", f"/v0/topics/{place}", json.dumps({"type": "queue", "durability": self._durability}))

    def target(self, place: str) -> str:
        return f"/v0/topics/{place}"


class BullMq(Redis):
    """A queue of BullMQ, which is created on first use. The library builds the requests."""

    protocol = "bullmq"

    def append(self, place: str, records: int, nbytes: int = PAYLOAD_BYTES) -> str:
        return payload(nbytes)


class NatsQueue(Nats):
    """A stream that deletes acknowledged messages, and one durable consumer that all workers pull from."""

    protocol = "nats-queue"

    def make(self, address: str, place: str) -> None:
        stream = {
            "name": place, "subjects": [place], "storage": "file", "num_replicas": 1, "retention": "workqueue",
        }  # fmt: skip
        self._ask(address, f"$JS.API.STREAM.CREATE.{place}", json.dumps(stream))
        consumer = {
            "stream_name": place,
            "config": {"durable_name": place, "deliver_policy": "all", "ack_policy": "explicit"},
        }
        self._ask(address, f"$JS.API.CONSUMER.DURABLE.CREATE.{place}.{place}", json.dumps(consumer))


OUR_QUEUES = {
    durability: Server(
        f"topics-{durability}",
        f"topics, class {durability}",
        (durability,),
        TopicsQueue(durability),
        our_version,
        launch_topics,
        port_file="address",
        product="topics",
    )
    for durability in BOTH
}


def _bullmq_version() -> str:
    folder = queue_npm_folder()
    package = json.loads((folder / "node_modules" / "bullmq" / "package.json").read_text())
    return f"{package['version']} on redis {redis_version()}"


def _bullmq(fsync: str, durability: str) -> Server:
    return Server(
        f"bullmq-{fsync}",
        f"BullMQ, redis {fsync}",
        (durability,),
        BullMq(),
        _bullmq_version,
        launch_redis(fsync),
        product="BullMQ",
        client=["node", str(_BULLMQ_SCRIPT)],
        # Installed when its version is asked for.
        client_env={"BENCH_NPM_FOLDER": str(CACHE / "npm-queue")},
    )


def _nats(key: str, title: str, durability: str, find: Callable[[], str], sync: str | None) -> Server:
    version = functools.partial(nats_version, find)
    return Server(key, title, (durability,), NatsQueue(), version, launch_nats(find, sync), product="NATS")


QUEUE_PEERS = (
    _bullmq("everysec", "disk"),
    _bullmq("always", "fsync"),
    _nats("nats", "NATS", "disk", new_nats, None),
    _nats("nats-always", "NATS always", "fsync", new_nats, "always"),
)
