"""A round of the pipeline: look, settle, read what is new once for all products, publish as it comes, tell."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from topics.log.catalog import Catalog, Encoded, decode_since, read_catalog_bytes
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.spark.archive.archive_plan import newest_delete
from topics.spark.pipeline.delete_acks import DeleteAcks, Histories
from topics.spark.pipeline.jobs import JobFailedError, RoundJob
from topics.spark.pipeline.products import Failure, Gain, Product, ShutOut, View
from topics.spark.pipeline.segment_scan import ChoreWork, Piece, PieceOutcome
from topics.spark.pipeline.status import LastRun, ProductStatus, WorkerStatus, load_status, quarantine, save_status
from topics.spark.pipeline.task_packing import FrameRules, TaskPacking, longest_first, packed
from topics.spark.segment_reader import History, NoCatalogError
from topics.system.clock import Clock
from topics.system.entropy import SystemEntropy

# Looks at the catalog round after round, and tells what is different from the time before.


class CatalogDiff:
    """A topic of ten thousand that did not change costs a look at its bytes, and no product hears of it."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._known: Encoded = {}

    def look(self, history_of: Callable[[int], History]) -> View:
        """Raises NoCatalogError where there is nothing to look at. `history_of` knows a log by its catalog's number."""
        data = read_catalog_bytes(self._fs, self._layout)
        if data is None:
            raise NoCatalogError(self._layout.root)
        head, topics = decode_since(data, self._known)
        changed = [topic for raw, topic in topics.items() if raw not in self._known]
        self._known = topics
        found = list(topics.values())
        by_id = {topic.topic_id: topic for topic in found}
        return View(Catalog(head, found), changed, by_id, history_of(head.number))

    def forget(self) -> None:
        """Whoever sat out a look must be told everything the next time."""
        self._known = {}


_TASKS_A_CORE = 2

_log = logging.getLogger(__name__)


class ShortError(Exception):
    """The machines of some tasks ran out of something, or a store did not answer. The round is tried again later."""


class Executor(Protocol):
    def parallelism(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """Runs pieces as one job, which is known as `about`: outcomes with the places of their pieces, as they come.

        Raises JobFailedError when a piece has no outcome; those that came before count all the same.
        """
        ...

    def footprint(self) -> WorkerStatus | None:
        """What this process takes with everything that it started; None where that is on another machine."""
        ...

    def probe(self) -> None:
        """Runs a job without any work. Raises WorkersUnavailableError where even that fails."""
        ...


class Pipeline:
    def __init__(
        self,
        fs: FileSystem,
        layout: Layout,
        products: Sequence[Product],
        executor: Executor,
        clock: Clock,
        rules: FrameRules | None = None,
        confirms: bool = True,
    ) -> None:
        """It `confirms` deletes where a product keeps copies that they must reach."""
        self._confirms = confirms
        self._fs = fs
        self._layout = layout
        self._products = products
        self._executor = executor
        self._clock = clock
        self._rules = FrameRules() if rules is None else rules
        self._watcher = CatalogDiff(fs, layout)
        self._waiting = TaskPacking()
        self._confirmations = DeleteAcks(fs, layout)
        self._histories = Histories(fs, layout, self._confirmations, SystemEntropy())
        self._sick: dict[str, Exception] = {}
        """Products that sit this round out, and why."""
        self.status = load_status(fs, layout)
        self._efforts = {one.product: one for one in self.status.products}
        """What each product has done, as far as that goes on counting."""
        self.on_progress: Callable[[int, int], None] = lambda done, total: None

    def round(self) -> bool:
        """Does what there is to do, up to a bound; whether there was anything."""
        now = self._clock.now_ms()
        self._sick = {}
        view = self._watcher.look(self._histories.look)
        shut_out = {product.name: self._shut_out(product.name, now) for product in self._products}
        chores = self._look(view, shut_out, now)
        if not self._sick:
            self._histories.settle(view.history, view.number)
        worked = self._work(view, shut_out, chores, now)
        if self._confirms and not self._sick:
            applied = min([product.confirmed(view.number) for product in self._products], default=view.number)
            self._confirmations.confirm(applied, lambda: newest_delete(view.topics.values()))
        self._tell(worked, view.number)
        for error in self._sick.values():
            self._watcher.forget()
            raise error
        return worked

    # Looking

    def _shut_out(self, product: str, now: int) -> ShutOut:
        found = [one for one in self.status.quarantined if one.product == product and one.waits(now)]
        return ShutOut(
            frozenset(one.topic_id for one in found if one.topic_id),
            frozenset(one.topic for one in found if not one.topic_id),
        )

    def _look(self, view: View, shut_out: dict[str, ShutOut], now: int) -> list[ChoreWork]:
        """Settles what needs no job, notes what is lacking, and collects the chores."""
        self._waiting.keep(view.topics)
        chores: list[ChoreWork] = []
        for product in self._products:
            name = product.name
            with self._sitting_out(name):
                product.settle(view, now, shut_out[name])
                for topic in view.changed:
                    self._waiting.note(name, topic, product.wants(topic))
                chores += [ChoreWork(name, chore) for chore in product.chores(now, shut_out[name])]
        return chores

    def _sitting_out(self, name: str) -> "_SittingOut":
        return _SittingOut(name, self._sick)

    # Working

    def _work(self, view: View, shut_out: dict[str, ShutOut], chores: list[ChoreWork], started_ms: int) -> bool:
        active = {product.name: shut_out[product.name] for product in self._products if product.name not in self._sick}
        if not self._waiting.has_any(active) and not chores:
            return False
        rules = self._rules.scaled(self._executor.parallelism())
        pieces = self._pieces(active, chores, rules)
        self._update(running=True, **self._lag())
        began = self._clock.monotonic()
        gains = Gain()
        efforts = {name: Gain() for name in active}
        ailing: Exception | None = None
        failed: dict[str, set[tuple[int, str]]] = {name: set() for name in active}
        job = RoundJob(self._executor, pieces, self.status.rounds + 1)
        for part in job.parts(
            rules.commit_bytes, lambda done: self.on_progress(done, len(pieces)), self._note_failed_job
        ):
            self._publish(view, part.outcomes, part.culprits, gains, failed, efforts)
            ailing = ailing or part.ailing
        if ailing is None:
            self._let_in(failed, started_ms)
        took = self._clock.monotonic() - began
        self._count(efforts, took)
        self._sum_up(gains, took, started_ms)
        if ailing is not None:
            raise ailing
        return True

    def _pieces(self, active: dict[str, ShutOut], chores: list[ChoreWork], rules: FrameRules) -> list[Piece]:
        charges = {product.name: product.charge() for product in self._products if product.name in active}
        blank = Piece(self._layout.root, self._layout.cold_root, charges)
        cores = self._executor.parallelism()
        works = self._waiting.works(active, rules.round_bytes)
        return longest_first(packed(works, chores, blank, rules.group_bytes, _TASKS_A_CORE * cores), cores)

    def _note_failed_job(self, error: JobFailedError) -> None:
        _log.warning("a pipeline job failed and is taken apart", extra={"error": str(error)})
        for product in self._products:
            product.job_failed()

    # Publishing

    def _publish(
        self,
        view: View,
        outcomes: list[PieceOutcome],
        culprits: list[tuple[str, Failure]],
        gains: Gain,
        failed: dict[str, set[tuple[int, str]]],
        efforts: dict[str, Gain],
    ) -> None:
        for outcome in outcomes:
            gains.records += outcome.records
            gains.bytes += outcome.bytes
            gains.segments += outcome.segments
        for product in self._products:
            name = product.name
            if name in self._sick or name not in failed:
                continue
            made = [one for outcome in outcomes for one in outcome.made.get(name, [])]
            failures = [failure for who, failure in culprits if who == name]
            failures += [failure for outcome in outcomes for who, failure in outcome.failures if who == name]
            with self._sitting_out(name):
                gain = product.commit(made, self._clock.now_ms()) if made else Gain()
                for topic_id in gain.topics:
                    if topic_id in view.topics:
                        self._waiting.note(name, view.topics[topic_id], product.wants(view.topics[topic_id]))
                failures += gain.failures
                efforts[name].records += gain.records
                efforts[name].segments += gain.segments
            efforts[name].failures += failures
            self._keep_out(name, failures)
            failed[name] |= {(failure.topic_id, failure.topic) for failure in failures}
        short = [outcome.short for outcome in outcomes if outcome.short]
        if short:
            self._sick.setdefault("", ShortError(short[0]))

    def _keep_out(self, product: str, failures: list[Failure]) -> None:
        known = self.status.quarantined
        for failure in failures:
            _log.error(
                "a topic is left out of the pipeline for now",
                extra={"topic": failure.topic, "product": product, "reason": failure.reason},
            )
            now = self._clock.now_ms()
            known = quarantine(known, failure.topic_id, failure.topic, product, failure.reason, now)
        if failures:
            self._update(quarantined=known)

    def _let_in(self, failed: dict[str, set[tuple[int, str]]], started_ms: int) -> None:
        """Whoever was tried again and did not fail is well; whoever failed again keeps the count of its attempts."""
        known = tuple(
            one
            for one in self.status.quarantined
            if one.waits(started_ms)
            or one.product in self._sick
            or (one.topic_id, one.topic) in failed.get(one.product, ())
        )
        if known != self.status.quarantined:
            self._update(quarantined=known)

    # Telling

    def _count(self, efforts: dict[str, Gain], took: float) -> None:
        """What products did in a round, to what they did before."""
        for name, gain in efforts.items():
            known = self._effort(name)
            rate = round(gain.records / took, 1) if gain.records and took > 0 else known.records_per_s
            self._efforts[name] = msgspec.structs.replace(
                known,
                records=known.records + gain.records,
                segments=known.segments + gain.segments,
                records_per_s=rate,
                failures=known.failures + len(gain.failures) + (name in self._sick),
            )

    def _effort(self, name: str) -> ProductStatus:
        return self._efforts.get(name) or ProductStatus(name, 0, 0, 0, 0)

    def _sum_up(self, gains: Gain, took: float, started_ms: int) -> None:
        rate = round(gains.records / took, 1) if took > 0 else 0.0
        status = self.status
        self._update(
            rounds=status.rounds + 1,
            records=status.records + gains.records,
            segments=status.segments + gains.segments,
            last_run=LastRun(started_ms, int(took * 1000), gains.records, gains.bytes, gains.segments, rate),
            worker=self._executor.footprint() or status.worker,
        )

    def _tell(self, worked: bool, number: int) -> None:
        if worked or self._sick:
            well: dict[str, object] = {"failures": 0, "error": None} if not self._sick else {}
            self._update(running=False, due_ms=self._due(), **well, **self._lag())
        elif (
            self.status.catalog != number
            or self.status.due_ms != self._due()
            or self.status.is_ahead(self._clock.now_ms())
        ):
            # Only now is the catalog done with: a round has a bound, and the next one may find more to do.
            self._update(running=False, catalog=number, due_ms=self._due(), **self._lag())

    def _due(self) -> int | None:
        moments = [product.due_ms() for product in self._products if product.name not in self._sick]
        return min([moment for moment in moments if moment is not None], default=None)

    def _lag(self) -> dict[str, object]:
        backlog = self._waiting.backlog()
        products = tuple(self._product_status(product.name) for product in self._products)
        return {
            "lag_segments": backlog.segments, "lag_bytes": backlog.bytes, "lag_ms": self._age(backlog.oldest_ts),
            "products": products,
        }  # fmt: skip

    def _product_status(self, name: str) -> ProductStatus:
        backlog, error = self._waiting.backlog(name), self._sick.get(name)
        return msgspec.structs.replace(
            self._effort(name),
            lag_segments=backlog.segments,
            lag_bytes=backlog.bytes,
            lag_ms=self._age(backlog.oldest_ts),
            quarantined=sum(one.product == name for one in self.status.quarantined),
            error=f"{type(error).__name__}: {error}"[:500] if error is not None else None,
        )

    def _age(self, oldest_ts: int | None) -> int:
        return max(self._clock.now_ms() - oldest_ts, 0) if oldest_ts is not None else 0

    def _update(self, **fields: object) -> None:
        self.status = msgspec.structs.replace(self.status, updated_ms=self._clock.now_ms(), **fields)
        save_status(self._fs, self._layout, self.status)


class _SittingOut:
    """What one product raises is kept for the end of the round: it must not cost the others theirs."""

    def __init__(self, name: str, sick: dict[str, Exception]) -> None:
        self._name = name
        self._sick = sick

    def __enter__(self) -> None:
        """Nothing is to be prepared."""

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> bool:
        if not isinstance(error, Exception):
            return False
        _log.error("a product sits this round out", extra={"product": self._name, "error": str(error)})
        self._sick[self._name] = error
        return True
