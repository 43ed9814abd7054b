"""Showing what became of jobs that a worker spoke about."""

from collections.abc import Sequence

import msgspec

from topics.cli.shared.failures import CommandError
from topics.cli.shared.output import Form, json_line, line


def settled(answer: msgspec.Struct, form: Form, done: str, count: int, skipped: Sequence[int]) -> int:
    """Prints it; jobs that were not this worker's are a failure, since somebody else may have them now."""
    if form == "json":
        json_line(answer)
    else:
        line(f"{count} {done}" if form == "table" else str(count))
    if skipped:
        raise CommandError(
            f"not held by this worker: {', '.join(map(str, skipped))}; `topics queue leases` tells who holds what"
        )
    return 0
