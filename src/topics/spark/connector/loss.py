"""What happens when records were lost before they were read.

The server never hides a loss: it tells the exact range in a tombstone. A query over the connector fails on one unless
`failOnDataLoss=false` was said; then the loss is logged with its range, and the query goes on behind it.
"""

import logging

import msgspec

_log = logging.getLogger(__name__)


class DataLossError(RuntimeError):
    """Records are gone that the query should have read."""


class Losses(msgspec.Struct):
    """Counts what a reader met, or refuses to go on."""

    fail: bool
    records: int = 0

    def met(self, topic: str, first: int, last: int, reason: str) -> None:
        """Seqs `first` to `last` of a topic are gone."""
        if self.fail:
            raise DataLossError(
                f"topic {topic}: records {first} to {last} are gone ({reason}) before they were read; start from "
                "another offset, or set failOnDataLoss=false to log losses and go on"
            )
        self.records += max(last - first + 1, 0)
        _log.warning(
            "records were lost before they were read",
            extra={"topic": topic, "from_seq": first, "to_seq": last, "reason": reason},
        )
