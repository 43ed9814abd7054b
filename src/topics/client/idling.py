"""What a worker does while its queue is empty: it waits for the next append, and looks for freed jobs now and then.

It takes note of where the queue's log ends, looks once more whether there is a job, and only then waits for something
behind that place. So a job that comes between two looks ends the wait at once.
"""

from typing import cast

from topics.client.answers import Diff, TopicState
from topics.client.hands import Plan
from topics.client.jobs import Claimed
from topics.client.requests import Request, diff, get_topic

Looked = TopicState | Diff


class Idling:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cursor: int | None = None

    def after(self, answer: Claimed) -> Request[Looked] | None:
        """What to send after a claim; None is to claim again when there is room."""
        if answer.claimed:
            # The log has moved on: its end is looked up again when the queue is empty the next time.
            self._cursor = None
            return None
        if self._cursor is None:
            return cast(Request[Looked], get_topic(self._plan.topic, touch=False))
        wait_ms = max(int(self._plan.idle_s * 1000), 1)
        waiting = diff(self._plan.topic, self._cursor, limit=1, include_meta=False, wait_ms=wait_ms)
        return cast(Request[Looked], waiting)

    def looked(self, answer: Looked) -> None:
        """Takes note of where the log ends."""
        self._cursor = answer.head_seq
