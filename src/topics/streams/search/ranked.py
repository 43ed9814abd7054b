"""Searches that are ranked by rarity: terms are counted in all parts first, and then the query is asked like any other.

Both go the same way through the same parts, up to the same entry. Each may take half of the time and of the bytes, so
that a ranked search costs no more than another one may. What was counted goes with the place where the next page
begins: that page is ranked by the same statistics, whatever was written or removed in between, and counts nothing.
"""

from msgspec.structs import replace

from topics.core.errors import TopicsError
from topics.engine.streams.description import Description
from topics.engine.topic import Topic
from topics.indexing.ranking import terms_of
from topics.searching.known import known_search
from topics.searching.messages import CountQuery, SearchQuery
from topics.streams.search.asking import Asking, Means
from topics.streams.search.outcome import Outcome, OutcomeDone


class RankedAsking:
    """One ranked search on its way."""

    def __init__(self, means: Means, topic: Topic, query: SearchQuery, deadline: float, done: OutcomeDone) -> None:
        self._means = means._replace(scan_bytes=means.scan_bytes // 2)
        self._topic = topic
        self._query = query
        self._deadline = deadline
        self._done = done
        self._head = topic.head

    def begin(self, description: Description, timeout_s: float) -> None:
        """Raises SearchUnavailableError."""
        self._description = description
        if not terms_of(known_search(self._query.q, description.contract.registry).predicate):
            self._search(None)
            return
        half_s = timeout_s / 2
        counting = Asking(
            self._means, self._topic, CountQuery(self._query.q), self._deadline - half_s, self._counted, self._head
        )
        counting.begin(description, half_s)

    def _counted(self, counted: Outcome | TopicsError) -> None:
        if isinstance(counted, TopicsError):
            self._done(counted)
            return
        self._query = replace(self._query, statistics=counted.result.counted)
        try:
            self._search(counted)
        except TopicsError as error:
            self._done(error)

    def _search(self, counted: Outcome | None) -> None:
        def done(outcome: Outcome | TopicsError) -> None:
            if counted is not None and isinstance(outcome, Outcome):
                outcome = _joined(counted, outcome)
            self._done(outcome)

        asking = Asking(self._means, self._topic, self._query, self._deadline, done, self._head)
        left_s = self._deadline - self._means.now()
        if left_s <= 0:
            asking.answer_nothing()
        else:
            asking.begin(self._description, left_s)


def _joined(counted: Outcome, found: Outcome) -> Outcome:
    """What was found, with all that was spent. What was not counted may stand in another place, so it is missing."""
    joined = replace(
        found,
        spent=found.spent or counted.spent,
        scanned_bytes=found.scanned_bytes + counted.scanned_bytes,
        statistics=counted.result.counted,
    )
    if counted.missed <= found.missed:
        return joined
    return replace(
        joined,
        missed_sealed=counted.missed_sealed,
        missed_tail=counted.missed_tail,
        missed_segments=counted.missed_segments,
        first_missed=counted.first_missed,
    )
