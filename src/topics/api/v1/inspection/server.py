"""`GET /v1/server/_details` and `GET /v1/server/_mem`: what the server is set to, and how it stands."""

from typing import Any

import msgspec

from topics.api.calls import Call
from topics.api.v1.answers import NO_STORE, answer
from topics.api.v1.inspection.server_limits import configured_limits
from topics.api.v1.inspection.server_memory import GC, SQLITE, Memory, Numbers
from topics.api.v1.inspection.top_streams import TopStreams
from topics.config.settings import Settings
from topics.core.moments import write_time
from topics.engine.engine import Engine
from topics.streams.service import Streams

_encode = msgspec.json.Encoder().encode
_AUTO_TUNE = {
    "enabled": False, "requested_memory_mb": None, "preset_mb": None, "effective_memory_limit_mb": None,
}  # fmt: skip


class ServerRoutes:
    """The handlers; each is given the streams of the call's engine."""

    def __init__(self, settings: Settings, shards: int) -> None:
        self._limits = configured_limits(settings, shards)
        self._memory = Memory(settings, shards)
        self._top = TopStreams()

    def details(self, call: Call, streams: Streams) -> None:
        def told(top: dict[str, Any]) -> None:
            _answer(
                call,
                {
                    "auto_tune": _AUTO_TUNE,
                    "configured_limits": self._limits,
                    "runtime": {
                        "memory": self._memory.look(call.engine, streams.search.stats()),
                        **self._runtime(call.engine, streams),
                        "top_streams": top,
                    },
                },
            )

        self._top.find(streams, call.key.prefixes, told)

    def memory(self, call: Call, streams: Streams) -> None:
        def told(top: dict[str, Any]) -> None:
            engine = call.engine
            memory = self._memory.look(engine, streams.search.stats())
            subsystems = dict(memory["subsystems"])
            counts = subsystems.pop("counts")
            _answer(
                call,
                {
                    "ts": write_time(engine.core.wall()),
                    "process": memory["process"],
                    "process_breakdown": memory["process_breakdown"],
                    "sqlite": SQLITE,
                    "gc": GC,
                    "high_water": memory["high_water"],
                    "counters": _counters(engine, streams),
                    "runtime_counts": counts,
                    "runtime_bytes": subsystems,
                    "runtime_totals": memory["totals"],
                    "top_streams": top,
                },
            )

        self._top.find(streams, call.key.prefixes, told)

    def _runtime(self, engine: Engine, streams: Streams) -> Numbers:
        core, limits = engine.core, self._limits
        shards, most = core.shards, limits["ingest"]["local_backlog_max_bytes"]
        queued = sum([shard.queue_depth for shard in shards])
        active = {
            "ingest": sum([bool(shard.queue_depth) for shard in shards]),
            "search": min(streams.search.under_way, limits["concurrency"]["search"]),
        }
        waiting = {
            "ingest": max(queued - active["ingest"], 0),
            "search": max(streams.search.under_way - active["search"], 0),
        }
        return {
            "ingest_queue": {
                "requests": queued,
                "bytes": sum([shard.queue_bytes for shard in shards]),
                "full": any([shard.full for shard in shards]),
            },
            "local_backpressure": {
                "enabled": most > 0,
                "current_bytes": core.total_bytes,
                "max_bytes": most,
                "over_limit": 0 < most <= core.total_bytes,
            },
            "uploads": {"pending_segments": engine.sealer.unlisted().segments},
            "concurrency": {
                gate: {
                    "configured_limit": limits["concurrency"][gate], "current_limit": limits["concurrency"][gate],
                    "active": active.get(gate, 0), "queued": waiting.get(gate, 0),
                }
                for gate in ("ingest", "read", "search", "async_index")
            },
        }  # fmt: skip


def _counters(engine: Engine, streams: Streams) -> Numbers:
    """What grows where something is kept that should not be."""
    core = engine.core
    return {
        "topics.topics": core.topic_count,
        "topics.routers": len(engine.routing.registry.by_name),
        "topics.tail_bytes": core.retention.tail_bytes,
        "topics.transactions_open": len(engine.transactions.book.open),
        "topics.touched_streams": len(streams.touched()),
        "topics.searches_under_way": streams.search.under_way,
        "topics.search_index_bytes": streams.search.stats().memory_bytes,
        "topics.trash": len(core.trash),
    }


def _answer(call: Call, document: Numbers) -> None:
    answer(call, 200, (NO_STORE,), _encode(document), "application/json")
