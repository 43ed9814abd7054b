"""Lines in and out: what standard input holds, and a record as one line of JSON.

{"seq":7,"ts":1748470000123,"node":"a","tag":"t","meta":{"k":1},"data":{"order":7}}
"""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from topics.cli.shared.failures import CommandError
from topics.client import Gap, Record
from topics.core.lines import in_one_line

BATCH_RECORDS = 1000
BATCH_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_LINE_BYTES_MAX = 256 * 1024 * 1024

_check = msgspec.json.Decoder(msgspec.Raw).decode


class Line(msgspec.Struct, omit_defaults=True):
    """A record as it is printed and exported; the payload is as its writer sent it, but for line breaks."""

    seq: int
    ts: int
    node: str | None = None
    tag: str | None = None
    meta: dict[str, Any] | None = None
    data: msgspec.Raw = msgspec.Raw(b"")

    @classmethod
    def of(cls, record: Record) -> "Line":
        return cls(record.seq, record.ts, record.node, record.tag, record.meta, msgspec.Raw(in_one_line(record.raw)))


class LostLine(msgspec.Struct, tag="lost", tag_field="type"):
    """Records that are lost, where the line of the first of them would stand."""

    gap_from: int
    gap_to: int
    reason: str

    @classmethod
    def of(cls, gap: Gap) -> "LostLine":
        return cls(gap.gap_from, gap.gap_to, gap.reason)


def told(topic: str, gap: Gap) -> str:
    """A loss in words."""
    if gap.reason == "recreated":
        return f"{topic} was deleted and made again: it goes on from its new beginning"
    return f"{topic}: the records {gap.gap_from} to {gap.gap_to} are lost ({gap.reason})"


def json_text(text: bytes, where: str, *, is_text: bool) -> msgspec.Raw:
    """One value as it stands, checked to be JSON; with `is_text`, the text as a JSON string."""
    try:
        decoded = text.decode("utf-8")
        if is_text:
            return msgspec.Raw(msgspec.json.encode(decoded))
        return _check(decoded.strip())
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        shown = text[:80].decode("utf-8", "replace")
        raise CommandError(
            f"{where} is no JSON ({error}): {shown!r}; a text needs quotes of its own, or --text"
        ) from error


@contextmanager
def interruptible_reads() -> Iterator[Callable[[int], bytes]]:
    """Reads what comes next from a descriptor, and misses no Ctrl-C while it waits: one that comes between the
    interpreter's last look for signals and a read that blocks would only be noticed when something is typed.
    """
    heard, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def read(descriptor: int) -> bytes:
        ready: list[int] = []
        while descriptor not in ready:
            ready, _, _ = select.select([descriptor, heard], [], [])
            if heard in ready:
                os.read(heard, 64)
        return os.read(descriptor, _CHUNK_BYTES)

    try:
        before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    except ValueError:  # Another thread than the main one hears of no signals anyway.
        before = None
    try:
        yield read
    finally:
        if before is not None:
            signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(told)


def read_lines(descriptor: int) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of a file with their numbers, as they come: whatever is there, and then a wait for more.

    A slow pipe gives its lines one by one and a fast one gives many at once, so that neither has to wait.
    """
    # The beginning of a line whose end has not come; joined only then, or a long line would be copied with every chunk.
    parts: list[bytes] = []
    size = number = 0
    with interruptible_reads() as read:
        while chunk := read(descriptor):
            parts.append(chunk)
            size += len(chunk)
            if b"\n" not in chunk:
                if size > _LINE_BYTES_MAX:
                    raise CommandError(
                        f"line {number + 1} is longer than {_LINE_BYTES_MAX} bytes: no server takes that"
                    )
                continue
            *whole, rest = b"".join(parts).split(b"\n")
            parts, size = [rest], len(rest)
            numbered = [(number + place, text) for place, text in enumerate(whole, 1)]
            number += len(whole)
            yield [(place, text) for place, text in numbered if text.strip()]
    rest = b"".join(parts)
    if rest.strip():
        yield [(number + 1, rest)]


def batches(values: list[msgspec.Raw]) -> Iterator[list[msgspec.Raw]]:
    """Parts that one request can carry."""
    batch: list[msgspec.Raw] = []
    size = 0
    for value in values:
        if batch and (len(batch) >= BATCH_RECORDS or size + len(bytes(value)) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(bytes(value))
    if batch:
        yield batch
