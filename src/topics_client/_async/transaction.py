"""A transaction as a block of code: its appends become visible atomically and exactly once."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from topics_client.answers import TransactionState
from topics_client.errors import ClientError
from topics_client.requests import Config, given_only
from topics_client.transaction_requests import Part, PartBuffer, TransactionPlan
from topics_protocol.records import NewRecord

if TYPE_CHECKING:
    from topics_client._async.client import AsyncClient


class AsyncTransaction:
    """Made by the `transaction` of a client, for a `with` block."""

    def __init__(self, client: "AsyncClient", plan: TransactionPlan) -> None:
        self.id = plan.id
        self.sequence = plan.sequence
        self.result: TransactionState | None = None
        """Where everything is, once it is committed."""
        self._plan = plan
        self._client = client
        self._buffer = PartBuffer()
        self._attempt: str | None = None
        self._ended = False
        self._conditions: dict[str, Mapping[str, object]] = {}

    @property
    def deduped(self) -> bool:
        """Whether it was committed before, so that nothing is done this time."""
        return self.result is not None and self.result.deduped

    async def append(
        self,
        topic: str,
        value: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, object] | None = None,
    ) -> None:
        """Adds one record. Single records of a topic are staged together."""
        record = value if isinstance(value, NewRecord) else NewRecord(value)
        record = msgspec.structs.replace(record, **given_only({"tag": tag, "node": node, "meta": meta}))
        part = self._buffer.add(topic, record) if self._takes_more() else None
        if part is not None:
            await self._stage(part)

    async def append_many(
        self,
        topic: str,
        records: Iterable[object],
        *,
        node: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        delay_ms: int = 0,
        run_at: datetime | int | None = None,
        priority: int = 0,
    ) -> None:
        """Adds records in this order, after earlier ones of the topic. The delay of jobs begins at the commit."""
        if not self._takes_more():
            return
        before = self._buffer.take(topic)
        if before is not None:
            await self._stage(before)
        terms = given_only({"delay_ms": delay_ms or None, "run_at": run_at, "priority": priority or None})
        await self._stage(self._buffer.part(topic, records, node, create, config, terms))

    def expect(self, topic: str, *, head_seq: int | None = None, fence: str | None = None) -> None:
        """Commits only if the topic has this head and this fence token; `HeadMismatch` or `FenceMismatch` otherwise.

        The transaction has to append to the topic.
        """
        self._conditions[topic] = given_only({"expected_head_seq": head_seq, "fence": fence})

    async def commit(self) -> TransactionState:
        """Makes all of it visible now, instead of at the end of the block."""
        if self.result is not None:
            return self.result
        for topic in self._buffer.topics:
            part = self._buffer.take(topic)
            if part is not None:
                await self._stage(part)
        self.result = await self._client.commit_transaction(
            self.id, self.sequence, attempt=self._attempt, conditions=self._conditions
        )
        self._ended = True
        return self.result

    async def abort(self) -> None:
        """Lets go of everything, instead of committing at the end of the block."""
        if not self._ended:
            self._ended = True
            await self._client.abort_transaction(self.id, self.sequence, attempt=self._attempt)

    def _takes_more(self) -> bool:
        """Whether added records are staged. They are ignored if the sequence was committed before; after a commit or an
        abort of this block they are an error, because dropping them silently would lose data."""
        if self._ended and not self.deduped:
            how = "aborted" if self.result is None else "committed"
            raise RuntimeError(f"the transaction {self.id!r} is {how} already: nothing can be added to it")
        return not self._ended

    async def _stage(self, part: Part) -> None:
        await self._client.stage(
            self.id, self.sequence, part.topic, part.records, part=part.name, attempt=self._attempt, node=part.node,
            create=self._plan.create if part.create is None else part.create, config=part.config,
            **part.terms,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        begun = await self._client.begin_transaction(self.id, self.sequence, timeout_ms=self._plan.timeout_ms)
        self._attempt = begun.attempt
        if begun.state == "committed":
            self.result, self._ended = begun, True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except ClientError:
            pass  # The error of the block is the one to raise; the server drops the rest in time.
