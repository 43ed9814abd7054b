"""Log lines: one event in each line, as text for terminals or as JSON for programs.

Code logs through the standard `logging` module. The message is a fixed phrase without values; these are in `extra`,
which both formats include: `logger.info("listening", extra={"address": address})`.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

LogFormat = Literal["auto", "human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

# Fields that every line has. `extra` cannot override them: a field with such a name gets an underscore appended.
_OWN_FIELDS = frozenset({"ts", "level", "logger", "event", "exception"})

# All other attributes of a record come from the caller's `extra`.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# The event loop reports uncaught exceptions through its logger.
_LOGGERS = ("topics", "asyncio")

_RESET = "\x1b[0m"
_COLOURS = {logging.WARNING: "\x1b[1;33m", logging.ERROR: "\x1b[1;31m", logging.CRITICAL: "\x1b[1;31m"}


class HumanFormatter(logging.Formatter):
    """`12:30:01.250 WARNING  event in words  name=value`, with an exception below it."""

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        colour = _COLOURS.get(record.levelno, "") if self._colours else ""
        event = f"{record.levelname:<8} {record.getMessage()}"
        line = f"{moment} {colour}{event}{_RESET}" if colour else f"{moment} {event}"
        for name, value in _extra_fields(record).items():
            line += f"  {name}={value}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, logger and event, then the caller's fields."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_extra_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logs(log_format: LogFormat, stream: TextIO | None = None, level: LogLevel = "info") -> None:
    """Sends the log lines of the product and its event loop to `stream` (default: standard error).

    A repeated call replaces the earlier set-up, so lines are never duplicated.
    """
    target = sys.stderr if stream is None else stream
    on_terminal = target.isatty()
    handler = logging.StreamHandler(target)
    if log_format == "human" or (log_format == "auto" and on_terminal):
        handler.setFormatter(HumanFormatter(colours=on_terminal))
    else:
        handler.setFormatter(JsonFormatter())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return {f"{name}_" if name in _OWN_FIELDS else name: value for name, value in given.items()}
