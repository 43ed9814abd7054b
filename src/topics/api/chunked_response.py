"""Chunked processing of long requests: large bodies are read, checked and encoded in portions.

Each is a task of the fair scheduler (`system.fair_scheduler`). A `TopicsError` that it raises becomes the response, as
with any handler.
"""

import logging
from collections.abc import Callable, Generator, Sequence

from topics.api.app import Call
from topics.engine.engine import Engine
from topics.http.request_body import LargeBody
from topics.model.errors import BatchTooLargeError, InvalidRequestError, RecordTooLargeError, TopicsError
from topics.model.limits import KIB, MIB, Limits
from topics.model.records import Record, Values, check_each
from topics.system.fair_scheduler import Pause, Task
from topics.wire.json_array_reader import BESIDE_BYTES, LARGE_BYTES, JsonArrayReader, Kind, find_array
from topics.wire.preencoding import Place, Preencoded, PreencodedBatch

_ITEM_SLACK_BYTES = 16 * KIB
"""Allowance for an element of `records` besides its data and meta: tag, node, member names and whitespace."""
_MARKER = b'{"data":0}'
_HEAVY_BYTES = 2 * MIB
_HEAVY_RECORDS = 4_000
"""Encoding a larger batch takes some milliseconds."""
_HEAVY_METAS = 500
"""Checking more records with meta takes some milliseconds: each is parsed."""
_RENUMBERED_MAX = 20_000
_PAUSES_MAX = 8
"""The maximum number of segments that a long batch waits for: other writers may fill segments continuously."""
_ATTEMPTS_MAX = 3
"""The number of attempts to preencode a batch whose seqs were taken meanwhile; after that the write encodes it."""

_log = logging.getLogger(__name__)


def run_task(call: Call, task: Task, refuse: Callable[[TopicsError], None]) -> None:
    """Runs a long task of a request under fair scheduling."""
    call.exchange.run(_answering(call, task, refuse))


def _answering(call: Call, task: Task, refuse: Callable[[TopicsError], None]) -> Task:
    try:
        yield from task
    except TopicsError as error:
        refuse(error)
    except Exception:
        head = call.exchange.head
        _log.exception("request failed", extra={"method": head.method, "path": head.path})
        refuse(TopicsError("the server made a mistake; it is in its log"))


def read_array(
    view: memoryview, start: int, decode: Callable[[bytes], list[Record]], kind: Kind
) -> Generator[None, None, JsonArrayReader[Record]]:
    """Reads an array of a body from after its bracket on."""
    portions = JsonArrayReader(view, start, decode, kind)
    while not portions.step():
        yield
    return portions


def read_records(
    large: LargeBody, what: str, limits: Limits, decode: Callable[[bytes], list[Record]]
) -> Generator[None, None, tuple[bytes, list[Record]]]:
    """Reads the `records` of a large body. Returns the rest of the body, with one placeholder record, and the records.
    Raises InvalidRequestError."""
    view = large.view
    start = find_array(view, b"records")
    if not start:
        raise InvalidRequestError(
            f"{what}: a body of more than {LARGE_BYTES} bytes is an object that has its records, as an array, within "
            f"its first {BESIDE_BYTES} bytes", max=BESIDE_BYTES,
        )  # fmt: skip
    portions = yield from read_array(view, start, decode, kind_of_records(what, limits))
    beside = len(view) - portions.end
    if beside > BESIDE_BYTES:
        raise InvalidRequestError(
            f"{what}: {beside} bytes follow the records; at most {BESIDE_BYTES} are allowed", max=BESIDE_BYTES
        )
    marker = _MARKER if portions.items else b""
    rest = b"%b%b%b" % (bytes(view[:start]), marker, bytes(view[portions.end :]))
    large.forget()
    return rest, portions.items


def check_marked(what: str, records: Sequence[Record], items: list[Record]) -> None:
    """Raises if the rest of a body has records as well, because they would occur twice."""
    if items and len(records) != 1:
        raise InvalidRequestError(f"{what} field records: is there twice", field="records")


def kind_of_records(what: str, limits: Limits) -> Kind:
    most, largest = limits.max_batch_records, limits.max_record_bytes
    return Kind(
        what, ".records", most, largest + _ITEM_SLACK_BYTES,
        lambda: BatchTooLargeError(f"a batch holds at most {most} records", max=most),
        lambda index: RecordTooLargeError(
            f"records[{index}]: takes more than {largest} bytes", index=index, max=largest
        ),
    )  # fmt: skip


def is_heavy(records: Sequence[Record]) -> bool:
    """Returns whether a batch takes long although its body is short, because many records have a tag, node or meta."""
    if type(records) is Values or len(records) <= _HEAVY_METAS:
        return False
    if len(records) <= _HEAVY_RECORDS:
        return any(record.meta is not None for record in records)
    return any(record.tag is not None or record.meta is not None or record.node is not None for record in records)


def preencode(
    engine: Engine,
    topic: str,
    records: Sequence[Record],
    node: str | None,
    ts: int | None = None,
    place: Place | None = None,
    checks: bool = False,
) -> Generator[Pause | None, None, Sequence[Record]]:
    """Returns the records, with their fragments if the batch is long enough to be preencoded.

    `place` is the memory of the data of a single one. With `checks` each is checked before, as in
    `model.records.check_records`. A large batch waits until the previous segment is written, so that other writers need
    not.
    """
    nbytes, has_meta = 0, False
    for begin in range(0, len(records), _HEAVY_RECORDS):
        some = records[begin : begin + _HEAVY_RECORDS]
        nbytes += sum([len(record.data) for record in some])
        has_meta = has_meta or any(record.meta is not None for record in some)
        yield None
    if nbytes <= _HEAVY_BYTES and len(records) <= (_HEAVY_METAS if has_meta else _HEAVY_RECORDS):
        return records
    if checks:
        for begin in range(0, len(records), _HEAVY_METAS):
            check_each(records, engine.limits, begin, begin + _HEAVY_METAS)
            yield None
    sealer = engine.sealer
    pauses = 0
    while pauses < _PAUSES_MAX and sealer.is_behind(engine.find(topic), nbytes):
        pauses += 1
        yield sealer.when_written
    preencoding = engine.preencoding
    while topic in preencoding:
        # One at a time: each would take the seqs of the others.
        yield None
    preencoding.add(topic)
    try:
        for tries_left in reversed(range(_ATTEMPTS_MAX)):
            first_seq, now = engine.next_numbers(topic, ts)
            batch = PreencodedBatch(records, first_seq, now, node, place, engine.next_base(topic))
            while not batch.step():
                yield None
            numbers = engine.next_numbers(topic, batch.ts)
            # Renumbering very many records would exceed a unit of work.
            moved = numbers != (first_seq, now) and len(records) > _RENUMBERED_MAX and tries_left
            if not moved and batch.fits(len(records), *numbers, node):
                return Preencoded(records, batch)
        return records
    finally:
        preencoding.discard(topic)
