"""Segment scan: the body of a Spark task, which reads segments once for all products and does chores."""

import socket
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.log.fs import FileSystem, is_passing, read_small
from topics.log.layout import Layout, is_object_store
from topics.log.object_store.store import StoreUnavailable
from topics.spark.pipeline.products import Chore, Failure, ProductTasks, SegmentRequest, Transform
from topics.spark.pipeline.remote_folder import RemoteFolder, remote_folder
from topics.spark.segment_reader import SegmentGoneError, SegmentRef, read_segment


class SegmentWork(msgspec.Struct, frozen=True, array_like=True):
    """One segment, and the requests of every product for it."""

    requests: list[tuple[str, SegmentRequest]]

    @property
    def topic_id(self) -> int:
        return self.requests[0][1].ref.topic_id

    @property
    def topic(self) -> str:
        return self.requests[0][1].ref.topic

    @property
    def text_bytes(self) -> int:
        return self.requests[0][1].ref.text_bytes

    def ref(self) -> SegmentRef:
        """The segment with a range that covers all requests."""
        refs = [request.ref for _, request in self.requests]
        first, last = min(ref.from_seq for ref in refs), max(ref.to_seq for ref in refs)
        return msgspec.structs.replace(refs[0], from_seq=first, to_seq=last)


class ChoreWork(msgspec.Struct, frozen=True, array_like=True):
    product: str
    chore: Chore


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """The work of one task."""

    root: str
    cold_root: str | None
    task_contexts: dict[str, bytes]
    segments: list[SegmentWork] = []
    chores: list[ChoreWork] = []
    places: list[str] = []
    """Folders in which a task must find the nonce, to prove that its machine has the same ones as the driver."""
    nonce: str = ""
    server: str = ""
    """The URL of the server from which a machine without the data folder reads; empty if there is none."""
    transfer: str = ""
    """The place in an object store to which such a machine writes files of the data folder."""


class PieceOutcome(msgspec.Struct, array_like=True):
    """The results of a piece."""

    made: dict[str, list[bytes]] = {}
    failures: list[tuple[str, Failure]] = []
    records: int = 0
    bytes: int = 0
    segments: int = 0
    short: str = ""
    """The resource that was exhausted before the piece was done, which is not a failure of the work."""
    elsewhere: str = ""
    """The reason why the task's machine does not have the same folders as the driver; the piece was not run then."""
    sent: list[str] = []
    """Files of the data folder that the task has written to the transfer."""


class _ShortError(Exception):
    """No disk space, descriptors or memory, or an unavailable store: the piece is tried again later."""


_pieces = msgspec.msgpack.Decoder(Piece)
_outcomes = msgspec.msgpack.Decoder(PieceOutcome)


def encode_piece(piece: Piece) -> bytes:
    return msgspec.msgpack.encode(piece)


def decode_outcome(data: bytes) -> PieceOutcome:
    return _outcomes.decode(data)


def run_piece(fs: FileSystem, product_tasks: Mapping[str, ProductTasks], work: bytes) -> bytes:
    """Runs a piece in a task. The failure of one topic or product does not affect the others."""
    piece = _pieces.decode(work)
    return msgspec.msgpack.encode(_Task(fs, product_tasks, piece).done())


def nonce_path(place: str) -> str:
    return f"{place}/nonce"


def reached(fs: FileSystem, piece: Piece) -> tuple[FileSystem, str]:
    """Returns the files as accessible from this machine, and the reason why the driver's folders are not; empty if they
    are.

    Without the proof, files written to a folder of the same name on another machine would count as archived. A machine
    without the data folder reads it from the server, if there is one.
    """
    wrong = [place for place in piece.places if not _is_same(fs, place, piece)]
    near = Layout(piece.root).pipeline
    if near in wrong and piece.server:
        fs = remote_folder(fs, piece.root, piece.server, piece.transfer)
        if _is_same(fs, near, piece):
            wrong.remove(near)
    cold = piece.cold_root
    if cold is not None and not is_object_store(cold) and _reads_cold(piece) and not fs.exists(f"{cold}/topics"):
        wrong.append(cold)
    if not wrong:
        return fs, ""
    return fs, (
        f"the worker on {socket.gethostname()} does not see the same {' and '.join(wrong)} as the driver: mount it "
        "there under the same path, or set pipeline_url and keep the archive in an object store"
    )


def _is_same(fs: FileSystem, place: str, piece: Piece) -> bool:
    return read_small(fs, nonce_path(place)) == piece.nonce


def _reads_cold(piece: Piece) -> bool:
    return any(work.requests[0][1].ref.cold for work in piece.segments)


class _Task:
    def __init__(self, fs: FileSystem, product_tasks: Mapping[str, ProductTasks], piece: Piece) -> None:
        self._fs = fs
        self._product_tasks = product_tasks
        self._piece = piece
        self._layout = Layout(piece.root, piece.cold_root)
        self._transforms: dict[str, Transform] = {}
        self._failed: set[tuple[str, int]] = set()
        self._outcome = PieceOutcome()

    def done(self) -> PieceOutcome:
        try:
            self._reach()
            if not self._outcome.elsewhere:
                self._all()
        except _ShortError as error:
            self._outcome.short = str(error)
        if isinstance(self._fs, RemoteFolder):
            self._outcome.sent = self._fs.sent
            self._fs.close()
        return self._outcome

    def _reach(self) -> None:
        try:
            self._fs, self._outcome.elsewhere = reached(self._fs, self._piece)
        except StoreUnavailable as error:
            raise _ShortError(_reason(error)) from error
        except PermissionError as error:
            self._outcome.elsewhere = str(error)

    def _all(self) -> None:
        for segment in self._piece.segments:
            self._scan(segment)
        for name, transform in self._transforms.items():
            self._finish(name, transform)
        for work in self._piece.chores:
            self._chore(work)

    def _scan(self, segment: SegmentWork) -> None:
        requests = [
            (name, request) for name, request in segment.requests if (name, segment.topic_id) not in self._failed
        ]
        if not requests:
            return
        try:
            # Read completely first: a segment that is damaged near its end must not reach any product in part.
            batches = list(read_segment(self._fs, self._layout, segment.ref()))
        except SegmentGoneError:
            return  # Evicted or deleted since it was planned.
        except Exception as error:
            _raise_if_short(error)
            for name, _ in requests:
                self._fail(name, segment, error)
            return
        self._outcome.segments += 1
        self._outcome.bytes += segment.text_bytes
        self._outcome.records += sum(batch.num_rows for batch in batches)
        for name, request in requests:
            if (name, segment.topic_id) in self._failed:
                continue
            try:
                self._transform(name).take(request, within(batches, request.ref, segment.requests))
            except Exception as error:
                _raise_if_short(error)
                self._fail(name, segment, error)

    def _finish(self, name: str, transform: Transform) -> None:
        try:
            made = transform.finish()
        except OSError as error:
            _raise_if_short(error)
            raise
        self._outcome.made.setdefault(name, []).append(made)

    def _transform(self, name: str) -> Transform:
        if name not in self._transforms:
            context = self._piece.task_contexts[name]
            self._transforms[name] = self._product_tasks[name].begin(self._fs, self._layout, context)
        return self._transforms[name]

    def _chore(self, work: ChoreWork) -> None:
        name, chore = work.product, work.chore
        try:
            made = self._product_tasks[name].chore(self._fs, self._layout, self._piece.task_contexts[name], chore.work)
        except Exception as error:
            _raise_if_short(error)
            self._outcome.failures.append((name, Failure(chore.topic_id, chore.subject, _reason(error))))
        else:
            self._outcome.made.setdefault(name, []).append(made)

    def _fail(self, name: str, segment: SegmentWork, error: Exception) -> None:
        self._failed.add((name, segment.topic_id))
        self._outcome.failures.append((name, Failure(segment.topic_id, segment.topic, _reason(error))))


def within(
    batches: Sequence[pa.RecordBatch], ref: SegmentRef, requests: Iterable[tuple[str, SegmentRequest]]
) -> Sequence[pa.RecordBatch]:
    """The range that one product requested of a shared segment."""
    if all((request.ref.from_seq, request.ref.to_seq) == (ref.from_seq, ref.to_seq) for _, request in requests):
        return batches
    kept = []
    for batch in batches:
        inside = pc.and_(pc.greater_equal(batch["seq"], ref.from_seq), pc.less_equal(batch["seq"], ref.to_seq))
        kept.append(batch.filter(inside))
    return [batch for batch in kept if batch.num_rows]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _raise_if_short(error: Exception) -> None:
    if is_passing(error) or isinstance(error, StoreUnavailable):
        raise _ShortError(_reason(error)) from error
