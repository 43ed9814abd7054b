"""A round of the pipeline: look, plan, do everything as one job, publish, tell."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from topics.spark.archive.tasks import Failure
from topics.spark.pipeline.products import Gain, Piece, Product
from topics.spark.pipeline.status import LastRun, load_status, quarantine, save_status
from topics.spark.segments import load_catalog
from topics.storage.fs import FileSystem
from topics.storage.layout import Layout
from topics.system.clock import Clock

_log = logging.getLogger(__name__)


class JobFailedError(Exception):
    """A job failed as a whole, so that nobody can tell which piece was to blame."""


class WorkersUnavailableError(JobFailedError):
    """No process came up that could do any work. That says nothing about the work: the round is tried again later."""


class Executor(Protocol):
    def run(self, pieces: Sequence[Piece], on_done: Callable[[int], None]) -> list[bytes]:
        """The outcomes of some pieces, in their order; `on_done` hears how many are finished. Raises JobFailedError."""
        ...

    def probe(self) -> None:
        """Runs a job without any work. Raises WorkersUnavailableError where even that fails."""
        ...


class Pipeline:
    def __init__(
        self, fs: FileSystem, layout: Layout, products: Sequence[Product], executor: Executor, clock: Clock
    ) -> None:
        self._fs = fs
        self._layout = layout
        self._products = products
        self._executor = executor
        self._clock = clock
        self.status = load_status(fs, layout)
        self.on_progress: Callable[[int, int], None] = lambda done, total: None

    def round(self) -> bool:
        """Does what there is to do, up to a bound; whether there was anything."""
        now = self._clock.now_ms()
        catalog = load_catalog(self._fs, self._layout)
        shut_out = [one.topic_id for one in self.status.quarantined if one.retry_at_ms > now]
        work: list[tuple[Product, list[bytes]]] = [
            (product, product.plan(catalog, now, shut_out)) for product in self._products
        ]
        total = sum(len(pieces) for _, pieces in work)
        if total:
            self._update(running=True, **self._lag(now))
            self._work(work, total, now)
        for product in self._products:
            product.finish(catalog)
        if total:
            self._update(running=False, failures=0, error=None, due_ms=self._due(), **self._lag(self._clock.now_ms()))
        elif self.status.catalog != catalog.head.number or self.status.due_ms != self._due():
            # Only now is the catalog done with: a round has a bound, and the next one may find more to do.
            number, lag = catalog.head.number, self._lag(self._clock.now_ms())
            self._update(running=False, catalog=number, due_ms=self._due(), **lag)
        return total > 0

    def _due(self) -> int | None:
        moments = [product.due_ms() for product in self._products]
        return min([moment for moment in moments if moment is not None], default=None)

    def _work(self, work: list[tuple[Product, list[bytes]]], total: int, started_ms: int) -> None:
        began = self._clock.monotonic()
        pieces = [Piece(product.name, piece) for product, planned in work for piece in planned]
        culprits: dict[str, list[Failure]] = {}
        ailing: WorkersUnavailableError | None = None
        try:
            outcomes = self._executor.run(pieces, lambda done: self.on_progress(done, total))
            done: dict[str, list[bytes]] = {product.name: [] for product, _ in work}
            for piece, outcome in zip(pieces, outcomes, strict=True):
                done[piece.product].append(outcome)
        except WorkersUnavailableError:
            raise
        except JobFailedError as error:
            _log.warning("a pipeline job failed; its topics are tried one by one", extra={"error": str(error)})
            done, culprits, ailing = self._one_by_one(work)
        gains = Gain()
        for product, _ in work:
            self._publish(product, done[product.name], culprits.get(product.name, []), gains, started_ms)
        took = self._clock.monotonic() - began
        run = LastRun(
            started_ms, int(took * 1000), gains.records, gains.bytes, gains.segments,
            round(gains.records / took, 1) if took > 0 else 0.0,
        )  # fmt: skip
        status = self.status
        self._update(
            rounds=status.rounds + 1,
            records=status.records + gains.records,
            segments=status.segments + gains.segments,
            last_run=run,
        )
        if ailing is not None:
            raise ailing

    def _publish(
        self, product: Product, outcomes: list[bytes], culprits: list[Failure], gains: Gain, started_ms: int
    ) -> None:
        now = self._clock.now_ms()
        gain = product.commit(outcomes, now)
        gains.records += gain.records
        gains.bytes += gain.bytes
        gains.segments += gain.segments
        failures = [*gain.failures, *culprits]
        failed = {failure.topic_id for failure in failures}
        # Whoever was let in again and did not fail is well; whoever failed again keeps the count of its attempts.
        known = tuple(
            one
            for one in self.status.quarantined
            if one.product != product.name or one.retry_at_ms > started_ms or one.topic_id in failed
        )
        for failure in failures:
            _log.error(
                "a topic is left out of the pipeline for now",
                extra={"topic": failure.topic, "product": product.name, "reason": failure.reason},
            )
            known = quarantine(known, failure.topic_id, failure.topic, product.name, failure.reason, now)
        self._update(quarantined=known)

    def _one_by_one(
        self, work: list[tuple[Product, list[bytes]]]
    ) -> tuple[dict[str, list[bytes]], dict[str, list[Failure]], WorkersUnavailableError | None]:
        """A piece that takes its whole process down spoils a job for all. Alone it spoils only its own topic.

        It ends early when no worker comes up any more: what is done by then is published, and nobody is to blame.
        """
        done: dict[str, list[bytes]] = {product.name: [] for product, _ in work}
        culprits: dict[str, list[Failure]] = {product.name: [] for product, _ in work}
        for product, planned in work:
            for topic_id, topic, piece in [part for one in planned for part in product.split(one)]:
                try:
                    done[product.name] += self._alone(Piece(product.name, piece))
                except WorkersUnavailableError as error:
                    return done, culprits, error
                except JobFailedError as error:
                    culprits[product.name].append(Failure(topic_id, topic, str(error)))
        return done, culprits, None

    def _alone(self, piece: Piece) -> list[bytes]:
        """One piece as a job. It is to blame when it fails twice, and a job without any work in between does not."""
        try:
            return self._executor.run([piece], lambda done: None)
        except JobFailedError:
            self._executor.probe()
        return self._executor.run([piece], lambda done: None)

    def _lag(self, now: int) -> dict[str, int]:
        backlogs = [product.backlog() for product in self._products]
        oldest = [backlog.oldest_ts for backlog in backlogs if backlog.oldest_ts is not None]
        return {
            "lag_segments": sum(backlog.segments for backlog in backlogs),
            "lag_bytes": sum(backlog.bytes for backlog in backlogs),
            "lag_ms": max(now - min(oldest), 0) if oldest else 0,
        }

    def _update(self, **fields: object) -> None:
        self.status = msgspec.structs.replace(self.status, updated_ms=self._clock.now_ms(), **fields)
        save_status(self._fs, self._layout, self.status)
