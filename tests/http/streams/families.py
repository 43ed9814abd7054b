"""One player with many small streams: it creates, forks, closes and deletes them, and knows their content."""

import random
import time
from dataclasses import dataclass, field

from tests.http.streams.players import PAUSE_S, TEXT, Line, Stage, read_all

_STREAMS_MAX = 60


@dataclass
class Known:
    """A stream as it must be."""

    values: list[str]
    offsets: list[tuple[str, int]] = field(default_factory=list)
    """Places that answers named, each with how many entries lie before it."""
    closed: bool = False
    gone: bool = False
    seq: int = 0


class Families:
    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.luck = random.Random(seed)
        self.streams: dict[str, Known] = {}

    def run(self) -> None:
        with self.stage.line() as line:
            while not self.stage.over.is_set():
                self._step(line)
                time.sleep(self.luck.random() * 2 * PAUSE_S)

    def _step(self, line: Line) -> None:
        there = [path for path, known in self.streams.items() if not known.gone]
        still_open = [path for path in there if not self.streams[path].closed]
        act = self.luck.random()
        if not still_open or (act < 0.15 and len(self.streams) < _STREAMS_MAX):
            self._create(line)
        elif act < 0.3 and len(self.streams) < _STREAMS_MAX:
            self._fork(line, self.luck.choice(there))
        elif act < 0.7:
            self._append(line, self.luck.choice(still_open), close=False)
        elif act < 0.8:
            self._append(line, self.luck.choice(still_open), close=True)
        elif act < 0.85:
            self._delete(line, self.luck.choice(there))
        else:
            self.look(line, self.luck.choice(list(self.streams)))

    def _fresh(self) -> tuple[str, str]:
        path = f"/v1/stream/family/{len(self.streams)}"
        return path, f"{path} begins"

    def _create(self, line: Line) -> None:
        path, value = self._fresh()
        answer, sent = line.insist("PUT", path, {"content-type": TEXT.content_type}, TEXT.encode((value,)))
        if line.expect(answer, 201, *([200] if sent > 1 else [])):
            self.streams[path] = Known([value], [(answer.headers["stream-next-offset"], 1)])

    def _fork(self, line: Line, source: str) -> None:
        """From the end of the source, or from any place in it that was ever named."""
        path, value = self._fresh()
        known = self.streams[source]
        offset, count = self.luck.choice([("", len(known.values)), *known.offsets])
        headers = {"content-type": TEXT.content_type, "stream-forked-from": source}
        if offset:
            headers["stream-fork-offset"] = offset
        answer, sent = line.insist("PUT", path, headers, TEXT.encode((value,)))
        if line.expect(answer, 201, *([200] if sent > 1 else [])):
            inherited = [place for place in known.offsets if place[1] <= count]
            end = (answer.headers["stream-next-offset"], count + 1)
            self.streams[path] = Known([*known.values[:count], value], [*inherited, end])

    def _append(self, line: Line, path: str, *, close: bool) -> None:
        known = self.streams[path]
        value = f"{path} {known.seq}"
        headers = {"content-type": TEXT.content_type, "producer-id": "p", "producer-epoch": "0"}
        headers |= {"producer-seq": str(known.seq), "stream-seq": _seq(known.seq), "stream-closed": str(close).lower()}
        bare = close and self.luck.random() < 0.5
        answer, sent = line.insist("POST", path, headers, b"" if bare else TEXT.encode((value,)))
        if not line.expect(answer, *([200, 204] if bare or sent > 1 else [200])):
            return
        if not bare:
            known.values.append(value)
        # Nobody else writes here, so the end offset in any answer is the end of this batch.
        known.offsets.append((answer.headers["stream-next-offset"], len(known.values)))
        known.seq += 1
        known.closed = close

    def _delete(self, line: Line, path: str) -> None:
        answer, sent = line.insist("DELETE", path, {})
        if line.expect(answer, 204, *([404, 410] if sent > 1 else [])):
            self.streams[path].gone = True

    def look(self, line: Line, path: str) -> None:
        """Checks that one stream has its expected content, from the start and from each known offset."""
        known = self.streams[path]
        if known.gone:
            answer, _ = line.insist("GET", path, {})
            line.expect(answer, 404, 410)
            return
        offset, count = self.luck.choice([("-1", 0), *known.offsets])
        found, last = read_all(line, path, TEXT, offset)
        closed = last.headers.get("stream-closed") == "true"
        if (found, closed) != (known.values[count:], known.closed):
            self.stage.problems.append(f"{path} from {offset}: {found}, closed {closed}, instead of {known}")
        if known.seq and not known.closed:
            # Most of these streams are idle, so their state comes from a snapshot.
            old = {"content-type": TEXT.content_type, "stream-seq": _seq(known.seq - 1)}
            line.expect(line.insist("POST", path, old, b"old")[0], 409)
            old |= {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(known.seq - 1)}
            line.expect(line.insist("POST", path, old, b"old")[0], 204)
        if known.closed:
            late, _ = line.insist("POST", path, {"content-type": TEXT.content_type}, b"too late")
            if line.expect(late, 409) and "stream-closed" not in late.headers:
                self.stage.problems.append(f"{path}: a closed stream does not say so")


def _seq(number: int) -> str:
    return f"{number:06d}"
