"""Sums that come together: of one entry after the other, and of one part after the other."""

from collections.abc import Sequence

import numpy as np

from topics.indexing import limits
from topics.indexing.aggregation import Aggregation
from topics.indexing.groups import NO_GROUPS, Dimension, Groups, regroup
from topics.indexing.measured import States
from topics.indexing.measures import State
from topics.indexing.rollups import Contribution, Group


class Tally:
    """What entries contribute, one by one."""

    def __init__(self, ask: Aggregation) -> None:
        self._ask = ask
        self._states: dict[tuple[int, Group], tuple[State, ...]] = {}

    def add(self, contribution: Contribution) -> bool:
        """Adds what an entry contributes. False when it would be one group too many, and nothing was added."""
        key = self._ask.start_of(contribution.timestamp), contribution.group
        known = self._states.get(key)
        if known is None:
            if len(self._states) >= limits.MAX_GROUPS:
                return False
            self._states[key] = contribution.states
            return True
        for state, further in zip(known, contribution.states, strict=True):
            state.merge(further)
        return True

    def groups(self) -> Groups:
        if not self._states:
            return NO_GROUPS
        starts, found = zip(*self._states, strict=True)
        return Groups(
            np.array(starts, np.int64),
            [_dimension(names) for names in zip(*found, strict=True)],
            [States(states) for states in zip(*self._states.values(), strict=True)],
        )


def _dimension(names: Sequence[str | None]) -> Dimension:
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    return Dimension(np.array([codes[name] for name in names]), list(codes))


class Table:
    """The sums so far, of one part or of all. They are added together when there are many, or when somebody asks."""

    def __init__(self) -> None:
        self._parts: list[Groups] = []
        self._count = 0

    def add(self, groups: Groups) -> bool:
        """Adds the sums of another part. False when there are too many groups then, and only the first ones stay."""
        if len(groups):
            self._parts.append(groups)
            self._count += len(groups)
        if self._count <= limits.MAX_GROUPS:
            return True
        merged = self.groups()
        fits = len(merged) <= limits.MAX_GROUPS
        self._parts = [merged if fits else merged.take(np.arange(limits.MAX_GROUPS))]
        self._count = len(self._parts[0])
        return fits

    def groups(self) -> Groups:
        if not self._parts:
            return NO_GROUPS
        if len(self._parts) > 1:
            # Their buckets are of one length already.
            self._parts = [regroup(self._parts, 1, range(len(self._parts[0].dimensions)))]
        return self._parts[0]
