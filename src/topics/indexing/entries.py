"""Stored text as entries: parsed and promoted as a read does it, for whoever indexes or scans."""

from typing import Any

import msgspec

from topics.schema.registry import Registry

_decode = msgspec.json.Decoder().decode


class EntryReader:
    """Makes entries of one stream, as it is described now."""

    def __init__(self, registry: Registry) -> None:
        self._promoter = registry.promoter if registry.current_version > 1 else None

    def value(self, seq: int, raw: bytes | memoryview) -> Any:
        """The promoted entry; None for what is no JSON."""
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
