"""Transactions: the calls, and the buffer that gathers records into parts. No function here waits."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from topics_client.answers import Staged, TransactionState
from topics_client.requests import Config, Request, as_config, encode_values, given_only, job_terms, named, several
from topics_protocol.records import NewRecord

_encode = msgspec.json.Encoder().encode
_PART_RECORDS = 1000
_PART_BYTES = 4 * 1024 * 1024


def begin_transaction(
    id: str, sequence: int, *, attempt: str | None = None, timeout_ms: int = 0
) -> Request[TransactionState]:
    """Begins an attempt at a transaction, which replaces any other attempt, or joins the attempt that is named.

    The state of a sequence that is committed already is `committed`.
    """
    given = {"id": id, "sequence": sequence, "attempt": attempt, "timeout_ms": timeout_ms or None}
    return Request(
        method="POST", target="/v0/transactions", body=encode_values(given_only(given)), answer=TransactionState
    )


def get_transaction(id: str) -> Request[TransactionState]:
    """Returns the open transaction of an id, or its last commit."""
    return Request(method="GET", target=_path(id), answer=TransactionState)


def stage(
    id: str,
    sequence: int,
    topic: str,
    records: Iterable[object],
    *,
    part: str,
    attempt: str | None = None,
    node: str | None = None,
    create: bool | None = None,
    config: Config | None = None,
    delay_ms: int = 0,
    run_at: datetime | int | None = None,
    priority: int = 0,
) -> Request[Staged]:
    """Stages records for a topic, invisible until the commit; a part that is staged again is replaced. The delay of
    jobs begins at the commit."""
    given = {
        "sequence": sequence,
        "attempt": attempt,
        "part": part,
        "topic": topic,
        "records": [
            record if isinstance(record, NewRecord | msgspec.Raw) else NewRecord(record)
            for record in several(records, "stage")
        ],
        "node": node,
        "create": create,
        "config": as_config(config),
        **job_terms(delay_ms, run_at, priority),
    }
    return Request(method="POST", target=_path(id, "stage"), body=encode_values(given_only(given)), answer=Staged)


def commit_transaction(
    id: str,
    sequence: int,
    *,
    attempt: str | None = None,
    parts: Sequence[str] | None = None,
    conditions: Mapping[str, Mapping[str, object]] | None = None,
) -> Request[TransactionState]:
    """Makes all staged records visible at once, or only the named parts, in their order.

    `conditions` has, by topic, the `expected_head_seq` and the `fence` without which nothing is committed.
    """
    given = {
        "sequence": sequence,
        "attempt": attempt,
        "parts": None if parts is None else list(parts),
        "conditions": conditions or None,
    }
    return Request(
        method="POST", target=_path(id, "commit"), body=encode_values(given_only(given)), answer=TransactionState
    )


def abort_transaction(id: str, sequence: int, *, attempt: str | None = None) -> Request[TransactionState]:
    """Aborts a transaction and removes its staged records."""
    given = {"sequence": sequence, "attempt": attempt}
    return Request(
        method="POST", target=_path(id, "abort"), body=encode_values(given_only(given)), answer=TransactionState
    )


def _path(id: str, verb: str = "") -> str:
    return f"/v0/transactions/{named(id, 'transaction')}" + (f"/{verb}" if verb else "")


class TransactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a transaction."""

    id: str
    sequence: int
    timeout_ms: int
    create: bool | None


def transaction(id: str, sequence: int, *, timeout_ms: int = 0, create: bool | None = None) -> TransactionPlan:
    """Returns a transaction for a `with` block: its records become visible at the end of the block, atomically and
    once.

    `sequence` numbers the transactions of an id. A committed sequence is not repeated: records of the block are
    dropped, and `deduped` of the result is true. An exception in the block aborts the transaction.
    """
    return TransactionPlan(id=id, sequence=sequence, timeout_ms=timeout_ms, create=create)


class Part(msgspec.Struct, frozen=True):
    """Records that are staged with one request."""

    name: str
    topic: str
    records: list[msgspec.Raw]
    node: str | None = None
    create: bool | None = None
    config: Config | None = None
    terms: Mapping[str, Any] = {}


class PartBuffer:
    """Gathers single records into parts, and numbers the parts."""

    def __init__(self) -> None:
        self._records: dict[str, list[msgspec.Raw]] = {}
        self._bytes: dict[str, int] = {}
        self._parts = 0

    def part(
        self,
        topic: str,
        records: Iterable[object],
        node: str | None,
        create: bool | None,
        config: Config | None,
        terms: Mapping[str, Any],
    ) -> Part:
        encoded = [msgspec.Raw(encode_values(_as_record(record))) for record in several(records)]
        return Part(self._name(), topic, encoded, node, create, config, terms)

    def add(self, topic: str, record: object) -> Part | None:
        """Takes one record; the part it completes, if it does."""
        raw = encode_values(_as_record(record))
        waiting = self._records.setdefault(topic, [])
        waiting.append(msgspec.Raw(raw))
        size = self._bytes[topic] = self._bytes.get(topic, 0) + len(raw)
        return self.take(topic) if len(waiting) >= _PART_RECORDS or size >= _PART_BYTES else None

    def take(self, topic: str) -> Part | None:
        """The next part that waits for a topic."""
        records = self._records.pop(topic, [])
        self._bytes.pop(topic, None)
        return Part(self._name(), topic, records) if records else None

    @property
    def topics(self) -> list[str]:
        return list(self._records)

    def _name(self) -> str:
        self._parts += 1
        return f"part-{self._parts}"


def _as_record(record: object) -> NewRecord:
    return record if isinstance(record, NewRecord) else NewRecord(record)
