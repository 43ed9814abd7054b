"""Promotion (schema migration on read): converts entries of older schema versions to the current version.

A proven lens never fails on an entry that was valid when it was written (`topics.schema.lens_proof`). An entry that was
never validated, because it was written through /v0, or that would grow beyond the limit, is returned unchanged: a
reader can skip one odd entry, but not an error.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec

from topics.schema.documents import MAX_PROMOTED_BYTES
from topics.schema.lenses import Op, Step, compile_ops, growth, run

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_NOT_VALID = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""The exceptions of ops on an entry that was never valid."""


class Chain:
    """The migration from one version to the current one."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.steps: tuple[Step, ...] = compile_ops(ops)
        factor, extra = growth(ops)
        self._safe_bytes = (MAX_PROMOTED_BYTES - extra) // factor
        """An entry of at most this size cannot grow beyond the limit, so its size is not checked."""

    def promote(self, raw: bytes | memoryview) -> bytes | memoryview:
        """The text of the promoted entry; `raw` itself when it cannot be promoted."""
        try:
            value = self.apply(_decode(raw), len(raw))
        except _NOT_VALID:
            return raw
        return _encode(value)

    def promote_all(self, raws: Sequence[bytes | memoryview]) -> bytes | None:
        """The texts of several promoted entries joined by commas, much faster than one by one; None where an entry
        needs `promote`.
        """
        if max(map(len, raws)) > self._safe_bytes:
            return None
        try:
            values = _decode(b"[%b]" % b",".join(raws))
            for step in self.steps:
                values = list(map(step, values))
        except _NOT_VALID:
            return None
        return _encode(values)[1:-1] if len(values) == len(raws) else None

    def apply(self, value: Any, size: int) -> Any:
        """The promoted value; changes `value` in place. Raises the errors of its ops on an invalid value."""
        if size <= self._safe_bytes:
            return run(self.steps, value)
        for step in self.steps:
            value = step(value)
            if _left(value, MAX_PROMOTED_BYTES) < 0:
                raise ValueError("the entry grows too large")
        return value


class Promoter:
    """The promotions of one stream. `boundaries` are the first entries of versions 1, 2 and so on; `ops` are those of
    the lenses from each version to the next, with defaults filled in."""

    def __init__(self, boundaries: Sequence[int], ops: Sequence[Sequence[Op]]) -> None:
        if boundaries and len(ops) != len(boundaries) - 1:
            raise ValueError("every version but the last one needs a lens")
        self._boundaries = list(boundaries)
        self._ops = ops
        self._chains: dict[int, Chain] = {}

    @property
    def current_version(self) -> int:
        return len(self._boundaries)

    @property
    def current_from(self) -> int:
        """The number of the first entry of the current version; earlier entries are promoted."""
        return self._boundaries[-1] if self._boundaries else 0

    def version_of(self, entry: int) -> int:
        """The version of an entry; 0 before the first version."""
        return bisect_right(self._boundaries, entry)

    def is_current(self, version: int) -> bool:
        return version == len(self._boundaries) or version == 0

    def chain(self, version: int) -> Chain:
        """The migration from `version` to the current one, compiled on first use."""
        chain = self._chains.get(version)
        if chain is None:
            chain = self._chains[version] = Chain([op for ops in self._ops[version - 1 :] for op in ops])
        return chain

    def last_of(self, version: int) -> int:
        """The number of the last entry of a version that has a next one."""
        return self._boundaries[version] - 1

    def promote(self, entry: int, raw: bytes | memoryview) -> bytes | memoryview:
        version = self.version_of(entry)
        return raw if self.is_current(version) else self.chain(version).promote(raw)


def _left(value: Any, room: int) -> int:
    """`room` minus the approximate length of the value's text; negative as soon as it does not fit. It underestimates
    a little and stops early, so that a text beyond the limit is never written."""
    if isinstance(value, str):
        return room - len(value) - 2
    if isinstance(value, dict):
        for name, member in value.items():
            room = _left(member, room - len(name) - 4)
            if room < 0:
                break
        return room
    if isinstance(value, list):
        for element in value:
            room = _left(element, room - 1)
            if room < 0:
                break
        return room
    return room - 1
