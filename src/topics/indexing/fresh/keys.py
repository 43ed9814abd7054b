"""Routing keys as a column. Where a field is the key, as ids are, its column is theirs and nothing is done twice."""

from copy import deepcopy
from typing import Any, Final

from topics.indexing.fresh.columns import Keywords
from topics.indexing.fresh.filling import Filler
from topics.schema.search import Binding, Field

_KEY: Final = Field(kind="keyword", bindings=(Binding(version=1, json_pointer=""),))


class Keys:
    """The column of a field for as long as every entry has there what it has for a key; from then on one of its own."""

    def __init__(self, alike: list[Filler]) -> None:
        """`alike` are fields whose texts are taken as they are."""
        self._alike = alike
        """Which of them may be the keys; one at most once there are entries."""
        self._own: Filler | None = None
        self._shared: Filler | None = None

    @property
    def column(self) -> Keywords:
        filler = self._shared or self._own
        if filler is None:
            filler = self._own = Filler(_KEY)
        assert isinstance(filler.column, Keywords)
        return filler.column

    def compare(self, filler: Filler, found: list[Any], keys: list[Any]) -> None:
        """Sees what a field is about to be filled with."""
        if self._shared is filler:
            if found != keys:
                self._own, self._shared = Filler(_KEY, deepcopy(filler.column)), None
        elif self._shared is None and self._own is None and filler in self._alike and keys and found == keys:
            self._shared = filler

    def fill(self, keys: list[Any]) -> None:
        if self._shared is None and (keys or self._own is not None):
            if self._own is None:
                self._own = Filler(_KEY)
            self._own.fill(keys)
