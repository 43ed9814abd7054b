"""Limits of requests, each with one home and its unit last in its name.

`Limits` holds those an operator may change; the constants are part of the protocol and fixed.
"""

from typing import Final

import msgspec

from topics_protocol.config import (
    MAX_CLAIM_JITTER_MS,
    MAX_DELAY_MS,
    MAX_LEASE_MS,
    MAX_PRIORITY,
    MAX_RUN_AHEAD_MS,
    MIN_LEASE_MS,
    MIN_PRIORITY,
    clamp_claim_jitter_ms,
    clamp_lease_ms,
)

__all__ = [
    "KIB", "MAX_CLAIM_JITTER_MS", "MAX_DELAY_MS", "MAX_I32", "MAX_LEASE_MS", "MAX_PRIORITY", "MAX_RUN_AHEAD_MS",
    "MAX_U64", "MAX_UNIQUE_KEY_BYTES", "MIB", "MIN_I32", "MIN_LEASE_MS", "MIN_PRIORITY", "Limits",
    "clamp_claim_jitter_ms", "clamp_delay_ms", "clamp_lease_ms",
]  # fmt: skip

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_U64: Final = 2**64 - 1
"""Seqs, counts and durations of the protocol are unsigned 64-bit integers."""

MIN_I32: Final = -(2**31)
MAX_I32: Final = 2**31 - 1


MAX_UNIQUE_KEY_BYTES: Final = 256
"""Bytes of the unique key of a job."""


def clamp_delay_ms(delay_ms: int) -> int:
    return min(max(delay_ms, 0), MAX_DELAY_MS)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of requests on one server. Where 0 switches a bound off, the field notes it."""

    max_topics: int = 100_000
    """0 is unlimited. Only creating a topic counts against it."""
    max_routers: int = 10_000
    """0 is unlimited. Only creating a router counts against it."""
    max_total_bytes: int = 0
    """0 is unlimited. Live payload bytes over all topics."""
    max_topics_per_key: int = 50_000
    """Topics, streams among them, under the prefixes of one key; 0 is unlimited. Half of all there may be."""
    max_routers_per_key: int = 5_000
    max_consumers_per_topic: int = 1_000
    """Named consumers of one topic; 0 is unlimited."""
    max_consumers_per_key: int = 10_000
    """Named consumers of the topics under the prefixes of one key; 0 is unlimited."""
    max_schedules: int = 100_000
    """0 is unlimited. Only creating a schedule counts against it."""
    max_schedules_per_key: int = 10_000
    """Schedules whose names are under the prefixes of one key; 0 is unlimited."""
    max_bytes_per_key: int = 0

    max_memory_bytes: int = 384 * MIB
    """Memory kept for all topics (`engine.quotas.KeptMemory`); 0 is unlimited. Leaves room in a machine of 2 GB."""
    max_memory_bytes_per_key: int = 192 * MIB
    """The same under the prefixes of one key; 0 is unlimited. Half of all there may be."""

    max_fanout_bytes: int = 48 * MIB
    """Bytes of copies a second, of sources with many routers (`routers.pump`); 0 is unlimited."""
    max_fanout_bytes_per_key: int = 32 * MIB
    """The same for sources under the prefixes of one key; 0 is unlimited."""

    max_batch_records: int = 10_000
    max_record_bytes: int = MIB
    """`data` and `meta` of one record together, as they were sent."""
    max_meta_bytes: int = 16 * KIB
    max_meta_keys: int = 64
    max_tag_bytes: int = 256
    max_node_bytes: int = 128
    max_idempotency_key_chars: int = 256
    """Counted as the protocol does, unlike the others. As UTF-8 a key must fit into the 64 KiB it has in the log."""
    max_idempotency_keys: int = 2_000_000
    """Idempotency keys that one topic remembers within its window; 0 is unlimited. A batch has one key, however many
    records."""

    max_limit: int = 1_000
    """Records in one read."""
    default_limit: int = 256
    max_batch_bytes: int = 8 * MIB
    """Payload bytes in one read; a single record always fits, or a reader could get stuck behind it."""
    default_batch_bytes: int = MIB
    max_wait_ms: int = 30_000

    max_claim: int = 1_000
    """Jobs in one claim, and seqs in one acknowledgement."""

    strict_config: bool = False
    """Whether a config with an unknown field is refused, where the request does not decide it itself."""

    max_transactions: int = 1_000
    """Open ones of one key; 0 is unlimited."""
    max_transaction_ids: int = 10_000
    """Ids whose last commit is remembered, and open ones."""
    max_transaction_ids_per_key: int = 5_000
    """The same for keys with prefixes, those with the same together; 0 is unlimited."""
    max_transaction_parts: int = 10_000
    max_transaction_records: int = 5_000_000
    max_transaction_bytes: int = 256 * MIB
    """Payload bytes; a commit holds them in memory."""
    max_staged_bytes: int = 1024 * MIB
    """Payload bytes of all open transactions of one key; 0 is unlimited."""
    transaction_timeout_ms: int = 3_600_000
    """How long an open transaction may lie idle before it is aborted."""
    transaction_retention_ms: int = 604_800_000
    """How long the last commit of an id is remembered."""

    def clamp_limit(self, limit: int) -> int:
        """The record bound of a read: 0 asks for the default, too much becomes the most there is."""
        return min(limit or self.default_limit, self.max_limit)

    def clamp_batch_bytes(self, batch_bytes: int) -> int:
        """The byte bound of a read, by the same rule."""
        return min(batch_bytes or self.default_batch_bytes, self.max_batch_bytes)

    def clamp_claim(self, jobs: int) -> int:
        """How many jobs a worker gets at once: 0 asks for one, too much becomes the most there is."""
        return min(jobs or 1, self.max_claim)

    def clamp_wait_ms(self, wait_ms: int) -> int:
        """How long a read may wait; 0 means not at all, so it stays 0."""
        return min(wait_ms, self.max_wait_ms)
