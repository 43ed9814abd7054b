"""What the searching process does: keeps indexes and answers queries, one message after the other."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from topics.indexing.aggregation import parse_aggregation
from topics.indexing.fresh.index import FreshIndex, FreshPart
from topics.indexing.matching import Matcher
from topics.indexing.parts import Ask as PlanAsk
from topics.indexing.parts import Budget, Entry, Span
from topics.indexing.plans import Coverage, aggregate, list_keys, search
from topics.indexing.predicates import bind_filter, bind_search
from topics.indexing.sorting import parse_sort
from topics.schema.registry import Registry, decode_registry
from topics.searching.messages import (
    Add,
    AggregateQuery,
    Answer,
    Ask,
    Drop,
    Filter,
    Hit,
    KeysQuery,
    Message,
    Open,
    Piece,
    Result,
    SearchQuery,
    encode_message,
    views,
)
from topics.wire.cuts import data_parts, tag_texts, tag_value

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Held:
    """One index with what makes entries of stored text."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.config = registry.search_config
        self.version = registry.current_version
        self._promoter = registry.promoter if registry.current_version > 1 else None
        self.fresh = FreshIndex(self.config, self.version)

    def entries(self, pieces: tuple[Piece, ...], body: memoryview) -> Iterator[list[Entry]]:
        """The entries of each piece. A stream that is searched for its keys alone is not parsed."""
        for first_seq, view in views(pieces, body):
            keys: dict[int, str] = {index: tag_value(text) for index, text in tag_texts(view, 0, view.count)}
            yield [
                Entry(
                    first_seq + index,
                    None if self.config is None else self._value(first_seq + index, raw),
                    len(raw),
                    key,
                )
                for index, raw in enumerate(data_parts(view, 0, view.count))
                for key in (keys.get(index),)
            ]

    def _value(self, seq: int, raw: bytes | memoryview) -> Any:
        try:
            value = _decode(raw)
        except (ValueError, RecursionError):
            return None
        promoter = self._promoter
        # Seqs begin with 1, and a registry counts entries from 0.
        if promoter is None or seq > promoter.current_from or promoter.is_current(promoter.version_of(seq - 1)):
            return value
        try:
            return promoter.chain(promoter.version_of(seq - 1)).apply(value, len(raw))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            # As a read does: an entry that cannot be promoted stays as it is. The attempt may have changed it.
            return _decode(raw)


class Worker:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[int, Held] = {}

    def take(self, message: Message) -> bytes | None:
        """Does what a message asks for; the answer, if it wants one."""
        head = message.head
        if isinstance(head, Open):
            self._held[head.index] = Held(decode_registry(head.registry))
        elif isinstance(head, Drop):
            self._held.pop(head.index, None)
        elif isinstance(head, Add):
            self._add(head, message.body)
        elif isinstance(head, Ask | Filter):
            return encode_message(self._answer(head, message.body))
        return None

    def _add(self, head: Add, body: memoryview) -> None:
        held = self._held.get(head.index)
        if held is None:
            return
        try:
            for entries in held.entries(head.pieces, body):
                held.fresh.add(entries)
        except Exception:
            # Columns of different lengths must not be asked; who asks is told that there is no such index.
            del self._held[head.index]

    def _answer(self, head: Ask | Filter, body: memoryview) -> Answer:
        try:
            held = self._held.get(head.index)
            if held is None:
                return Answer(head.request, None, "there is no such index")
            result = self._filter(held, head, body) if isinstance(head, Filter) else self._ask(held, head)
            return Answer(head.request, result)
        except Exception as error:
            # A query that fails must fail alone. What is wrong with a request was told before it came here.
            return Answer(head.request, None, f"{type(error).__name__}: {error}")

    def _ask(self, held: Held, ask: Ask) -> Result:
        budget = Budget(self._now, max(ask.deadline - self._now(), 0.0), 1 << 62)
        part = FreshPart(
            held.fresh, Span(ask.first, ask.last, held.fresh.count_between(ask.first, ask.last)), ask.removed
        )
        query = ask.query
        if isinstance(query, KeysQuery):
            page = list_keys([part], query.after, query.limit, budget)
            return self._result(held, page.coverage, keys=tuple(page.keys), is_full=page.next_after is not None)
        assert held.config is not None
        if isinstance(query, AggregateQuery):
            wanted = parse_aggregation(query.body, held.config, held.version)
            sums = aggregate([part], wanted, budget)
            buckets = sums.table.buckets(wanted, wanted.contributions().names)
            return self._result(held, sums.coverage, buckets=_encode(buckets))
        return self._search(held, part, query, budget)

    def _search(self, held: Held, part: FreshPart, query: SearchQuery, budget: Budget) -> Result:
        assert held.config is not None
        bound = bind_search(query.q, held.config)
        asked = PlanAsk(
            config=held.config,
            version=held.version,
            predicate=bound.predicate,
            sort=parse_sort(query.sort, held.config, bound.has_text),
            size=query.size,
            after=None if query.after is None else tuple(query.after),
            count_all=query.count_all,
        )
        page = search([part], asked, budget)
        hits = tuple(Hit(list(hit.place), hit.number, hit.score) for hit in page.hits)
        return self._result(held, page.coverage, hits=hits, is_full=page.next_after is not None, matched=page.matched)

    @staticmethod
    def _result(held: Held, coverage: Coverage, **found: Any) -> Result:
        return Result(
            looked_at=coverage.tail_rows,
            missed=coverage.missed,
            spent=coverage.spent,
            memory_bytes=held.fresh.memory_bytes,
            **found,
        )

    @staticmethod
    def _filter(held: Held, head: Filter, body: memoryview) -> Result:
        assert held.config is not None
        matcher = Matcher(bind_filter(head.filter, held.config), held.config, held.version)
        row, matches = matcher.row, matcher.matches
        seqs: list[int] = []
        scanned = 0
        for entries in held.entries(head.pieces, body):
            seqs += [entry.number for entry in entries if matches(row(entry.value))]
            scanned += sum([entry.size for entry in entries])
        return Result(seqs=tuple(seqs), scanned_bytes=scanned)
