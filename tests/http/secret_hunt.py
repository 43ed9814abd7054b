"""`topics serve` that searches its memory for secrets on request, and writes down where it found one.

The secrets to look for are given backwards, so that looking for them makes none.
"""

import gc
import os
import sys
import threading
import time
from pathlib import Path

from topics.cli import main


def hunt(words: list[str], result: Path) -> None:
    while not result.with_suffix(".go").exists():
        time.sleep(0.01)
    gc.collect()
    found, seen = set(), set()
    # Objects that the collector does not track, such as objects of plain values, are reached through tracked ones.
    open_ends = [*gc.get_objects(), *sys._current_frames().values()]
    while open_ends:
        holder = open_ends.pop()
        if id(holder) in seen or holder is open_ends:
            continue
        seen.add(id(holder))
        for held in gc.get_referents(holder):
            if not isinstance(held, str | bytes):
                open_ends.append(held)
                continue
            text = held.decode("latin-1") if isinstance(held, bytes) else held
            if any(word in text[::-1] for word in words):
                found.add(type(holder).__name__)
    result.with_suffix(".tmp").write_text("\n".join(sorted(found)))
    result.with_suffix(".tmp").rename(result)


if __name__ == "__main__":
    backwards = os.environ.pop("HUNT_BACKWARDS").split(",")
    place = Path(os.environ.pop("HUNT_RESULT"))
    threading.Thread(target=hunt, args=(backwards, place), daemon=True).start()
    sys.exit(main(["serve"]))
