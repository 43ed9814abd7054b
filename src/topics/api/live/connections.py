"""How many long-lived connections there may be: event streams and WebSockets together."""

from collections.abc import Callable

from topics.api.auth import ANYONE, Key
from topics.core.errors import ThrottledError


class Connections:
    """Counts what is open, in all and of each key. 0 is no limit."""

    def __init__(self, connections_max: int, per_key_max: int) -> None:
        self._max = connections_max
        self._per_key_max = per_key_max
        self.open = 0
        self._of_key: dict[int, int] = {}

    def enter(self, key: Key) -> Callable[[], None]:
        """Counts a connection in and returns what counts it out, which may be called more than once.

        Raises ThrottledError when there is no room. Without keys there is nobody to count apart.
        """
        if self._max and self.open >= self._max:
            raise ThrottledError.over_cap("max_sse_connections", self._max)
        mine = self._of_key.get(key.number, 0)
        if key is not ANYONE and self._per_key_max and mine >= self._per_key_max:
            raise ThrottledError.over_cap("max_sse_connections_per_key", self._per_key_max)
        self.open += 1
        self._of_key[key.number] = mine + 1
        inside = True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                self.open -= 1
                self._of_key[key.number] -= 1
                if not self._of_key[key.number]:
                    del self._of_key[key.number]

        return leave
