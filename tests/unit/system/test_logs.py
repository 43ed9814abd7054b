import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.system.logs import LogFormat, configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def untouched_loggers() -> Iterator[None]:
    """Loggers configured in a test would otherwise write into the closed stream of that test."""
    loggers = [logging.getLogger(name) for name in ("topics", "asyncio")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def logged(log_format: LogFormat, stream: io.StringIO) -> str:
    configure_logs(log_format, stream)
    logging.getLogger("topics.part").warning("disk is slow", extra={"path": Path("wal"), "sync_ms": 12})
    return stream.getvalue()


@pytest.mark.parametrize(("log_format", "stream"), [("json", Terminal()), ("auto", io.StringIO())])
def test_programs_get_one_object_a_line(log_format: LogFormat, stream: io.StringIO) -> None:
    line = json.loads(logged(log_format, stream))
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "topics.part",
        "event": "disk is slow",
        "path": "wal",
        "sync_ms": 12,
    }


def test_what_a_line_states_itself_cannot_be_stated_otherwise() -> None:
    stream = io.StringIO()
    configure_logs("json", stream)
    taken = {name: f"other {name}" for name in ("ts", "level", "logger", "event", "exception")}
    try:
        raise ValueError("planted")
    except ValueError:
        logging.getLogger("topics.part").exception("it happened", extra=taken)
    line = json.loads(stream.getvalue())
    assert line["ts"].endswith("Z")
    assert (line["level"], line["logger"], line["event"]) == ("error", "topics.part", "it happened")
    assert "planted" in line["exception"]
    assert {name: line[f"{name}_"] for name in taken} == taken


def test_people_get_a_sentence_and_values() -> None:
    line = logged("human", io.StringIO())
    assert line.endswith("WARNING  disk is slow  path=wal  sync_ms=12\n")


def test_a_warning_is_loud_on_a_terminal() -> None:
    line = logged("auto", Terminal())
    assert "\x1b[1;33mWARNING  disk is slow\x1b[0m  path=wal" in line


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_an_exception_comes_with_its_traceback(log_format: LogFormat) -> None:
    stream = io.StringIO()
    configure_logs(log_format, stream)
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("topics").exception("failed")
    assert "Traceback" in stream.getvalue()
    assert "KeyError: 'lost'" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1 or log_format == "human"


def test_configuring_twice_does_not_double_lines() -> None:
    configure_logs("json", io.StringIO())
    stream = io.StringIO()
    assert logged("json", stream).count("\n") == 1


def test_the_event_loop_speaks_the_same_way() -> None:
    stream = io.StringIO()
    configure_logs("json", stream)
    logging.getLogger("asyncio").error("callback failed")
    assert json.loads(stream.getvalue())["event"] == "callback failed"
