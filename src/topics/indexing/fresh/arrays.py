"""Arrays that grow at their end."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_FIRST_ROOM = 64


class Growing:
    """An array with room behind its end. What was handed out stays valid and unchanged while it grows."""

    __slots__ = ("_room", "count")

    def __init__(self, kind: DTypeLike) -> None:
        self._room: NDArray[Any] = np.empty(_FIRST_ROOM, kind)
        self.count = 0

    def extend(self, values: Sequence[Any] | NDArray[Any]) -> None:
        end = self.count + len(values)
        if end > len(self._room):
            larger = np.empty(max(end, 2 * len(self._room)), self._room.dtype)
            larger[: self.count] = self._room[: self.count]
            self._room = larger
        self._room[self.count : end] = values
        self.count = end

    @property
    def filled(self) -> NDArray[Any]:
        return self._room[: self.count]

    @property
    def memory_bytes(self) -> int:
        return int(self._room.nbytes)
