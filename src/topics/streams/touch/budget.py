"""How many fine keys may be worked out: so many a batch, and so many a second with a reserve for bursts."""

from topics.schema.profiles.state_protocol import Touch


class FineBudget:
    def __init__(self, settings: Touch, now_ms: int) -> None:
        self._settings = settings
        self._tokens = float(settings.fine_burst_tokens)
        self._filled_ms = now_ms
        self._left = 0
        self.behind = False
        """Whether so much waits to be looked at that only a reserve of fine keys is worked out."""

    @property
    def mode(self) -> str:
        if not self.behind:
            return "fine"
        return "restricted" if self._settings.lag_reserved_fine_touch_budget_per_batch else "coarseOnly"

    def begin(self, lag: int, now_ms: int) -> None:
        """A batch is looked at, with so many entries behind it."""
        settings = self._settings
        passed = max(now_ms - self._filled_ms, 0)
        self._filled_ms = now_ms
        filled = self._tokens + passed * settings.fine_tokens_per_second / 1000
        self._tokens = min(filled, float(settings.fine_burst_tokens))
        if lag >= max(settings.lag_degrade_fine_touches_at_source_offsets, 1):
            self.behind = True
        elif lag <= settings.lag_recover_fine_touches_at_source_offsets:
            self.behind = False
        per_batch = settings.fine_touch_budget_per_batch
        if self.behind:
            per_batch = min(per_batch, settings.lag_reserved_fine_touch_budget_per_batch)
        self._left = min(per_batch, int(self._tokens))

    def spend(self, keys: int) -> bool:
        """Whether so many keys may be told."""
        if keys > self._left:
            return False
        self._left -= keys
        self._tokens -= keys
        return True
