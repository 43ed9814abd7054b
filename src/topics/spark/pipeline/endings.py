"""How the pipeline's process ended, as its server saw it: a process that was killed has told nobody.

Nor has one whose disk was full when it wanted to. Such an end counts as a failed round and is told in the place of the
error that is missing, until a process has worked again or has ended well.
"""

import signal

import msgspec

from topics.spark.pipeline.status import PipelineStatus

BUSY = 3
"""The exit code of a process that gave way to another one."""


class Endings:
    def __init__(self) -> None:
        self._untold = 0
        self._why: str | None = None
        self._left = PipelineStatus()
        """What the last one left that ended badly."""

    def note(self, code: int, status: PipelineStatus) -> None:
        """A process ended with this exit code, or by a signal if it is negative, and left this status."""
        if code == 0:
            self.forget()
        elif code < 0 or code == BUSY or status.running or status.error is None:
            self.note_untold(_words(code), status)
        else:
            self._why = None

    def note_untold(self, why: str, status: PipelineStatus) -> None:
        self._untold += 1
        self._why, self._left = why, status

    def look(self, status: PipelineStatus) -> None:
        """What a process tells that runs: that it came to the end of a round makes good for all before it."""
        if status != self._left and status.error is None and not status.running:
            self.forget()

    def forget(self) -> None:
        self._untold, self._why = 0, None

    def told(self, status: PipelineStatus) -> PipelineStatus:
        """A status with what its writer did not live to tell."""
        if not self._untold:
            return status
        error = self._why or status.error
        return msgspec.structs.replace(status, failures=status.failures + self._untold, error=error)


def _words(code: int) -> str:
    if code == BUSY:
        return "another process has the pipeline"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with {code}; the log says why"
