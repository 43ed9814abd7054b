"""A long batch on its way: when it waits for segments to be written, and for how long at the most."""

from typing import Any

from tests.unit.conftest import append, catch_up, move, open_engine, topic
from topics.api import chunked_response
from topics.api.chunked_response import preencode
from topics.engine.engine import Engine
from topics.model.records import Record
from topics.system.fair_scheduler import Pause
from topics.wire.preencoding import Preencoded

MIB = 1024 * 1024
LONG = [Record(b'"%b"' % (b"x" * 3 * MIB))]


class Drafting:
    """The work on a long batch, done step by step."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._work = preencode(engine, name, LONG, None)
        self.result: Any = None

    def until_pause(self) -> Pause | None:
        """Goes on; gives the pause it asks for, or None when it is done."""
        while True:
            try:
                pause = next(self._work)
            except StopIteration as end:
                self.result = end.value
                return None
            if pause is not None:
                return pause


def behind() -> Engine:
    """An engine that is about to write a segment of a topic."""
    engine = open_engine(segment_max_bytes=2 * MIB)
    for name in ("t", "other"):
        append(engine, name, 1)
    move(engine, "t", "pending")
    return engine


def test_it_waits_until_the_segment_before_it_is_written() -> None:
    engine = behind()
    drafting, resumed = Drafting(engine, "t"), list[int]()
    pause = drafting.until_pause()
    assert pause is not None
    pause(lambda: resumed.append(1))
    assert not resumed and not engine.core.preencoding, "it holds nobody up who writes to the topic"
    catch_up(engine)
    assert resumed == [1]
    assert drafting.until_pause() is None and isinstance(drafting.result, Preencoded)
    assert topic(engine, "t").head == 1


def test_it_does_not_wait_where_nothing_is_written() -> None:
    drafting = Drafting(open_engine(segment_max_bytes=2 * MIB), "t")
    assert drafting.until_pause() is None and isinstance(drafting.result, Preencoded)


def test_it_does_not_wait_without_end() -> None:
    drafting = Drafting(behind(), "t")
    for _ in range(chunked_response._PAUSES_MAX):
        assert drafting.until_pause() is not None
    assert drafting.until_pause() is None and isinstance(drafting.result, Preencoded)
