"""The server with a clock in its loop: `python -m bench.turns_server`, settings from the environment as ever.

A callback that asks to be called again in the next turn sees every turn of the loop. How long a turn was is counted in
processor time of the loop's thread, so that other work of the machine does not count. A line on standard input asks for
the longest turn since the last one, and what the loop was at when it had lasted for too long.
"""

import asyncio
import json
import os
import sys
import threading
import time
import traceback

from topics import server
from topics.model.settings import Settings

LONG_S = 0.008
_LOOK_S = 0.001


class TurnClock:
    """Records the longest turn. The loop writes, and the thread that answers requests reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._begun = time.thread_time()
        self.longest_s = 0.0
        self.turns = 0
        self.seen = ""
        threading.Thread(target=self._watch, daemon=True).start()
        loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._begun)
        self.turns += 1
        self._begun = now
        self._loop.call_soon(self._turn)

    def _watch(self) -> None:
        looked_at = -1
        while True:
            time.sleep(_LOOK_S)
            turn = self.turns
            if turn != looked_at and time.clock_gettime(self._clock) - self._begun > LONG_S:
                looked_at = turn
                frames = traceback.extract_stack(sys._current_frames()[self._thread])
                self.seen += " < ".join(f"{one.name}:{one.lineno}" for one in reversed(frames[-8:])) + "\n"

    def answer(self) -> str:
        longest_s, self.longest_s, seen, self.seen = self.longest_s, 0.0, self.seen, ""
        return json.dumps({"longest_ms": longest_s * 1000, "turns": self.turns, "seen": seen})


def _answer(clock: TurnClock) -> None:
    for _ in sys.stdin:
        print(clock.answer(), flush=True)


def main() -> None:
    def listening(address: str) -> None:
        clock = TurnClock(asyncio.get_running_loop())
        threading.Thread(target=_answer, args=(clock,), daemon=True).start()

    server.run(Settings.from_env(os.environ), listening)


if __name__ == "__main__":
    main()
