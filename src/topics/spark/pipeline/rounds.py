"""Pipeline rounds: diff the catalog, reconcile products, run one job for all missing work, publish, save the status.

Delete acknowledgements: the catalog number up to which every product of the pipeline has applied deletes.

The engine keeps a delete of sealed records until it is acknowledged, and forgets it then. `LogHistory` identifies the
log that the products were built from.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from topics.log.catalog_files import CatalogReader, CatalogTopics
from topics.log.fs import FileSystem, WrongChecksumError, read_checked, write_checked
from topics.log.layout import RESTORED, Layout
from topics.model.errors import TopicsError
from topics.model.settings import SettingsError
from topics.spark.archive.archive_plan import newest_delete
from topics.spark.pipeline.jobs import JobFailedError, RoundJob
from topics.spark.pipeline.products import CatalogView, CommitResult, Failure, Product, QuarantinedSubjects
from topics.spark.pipeline.remote_folder import clear, discard, receive
from topics.spark.pipeline.segment_scan import ChoreWork, Piece, PieceOutcome, nonce_path
from topics.spark.pipeline.status import (
    ARCHIVE,
    LastRun,
    ProductStatus,
    RunReporter,
    WorkerStatus,
    load_status,
    quarantine,
    save_status,
)
from topics.spark.pipeline.task_packing import FrameRules, TaskPacking, longest_first, packed
from topics.spark.segment_reader import History, NoCatalogError
from topics.system.clock import Clock
from topics.system.entropy import Entropy, SystemEntropy


class DamagedNoteError(TopicsError):
    """A small file of the pipeline has a wrong checksum, and nothing else states what was in it."""


class DeleteAcks:
    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._seen: int | None = None

    def is_ahead_of(self, number: int) -> bool:
        """Whether a catalog is older than the last acknowledgement: the folder was restored from a copy."""
        return number < self._acked()

    def restart(self, number: int) -> None:
        """Withdraws the acknowledgements of later catalogs."""
        if self.is_ahead_of(number):
            write_checked(self._fs, self._layout.pipeline_seen, str(number))
            self._seen = number

    def begin(self) -> None:
        """Writes the first acknowledgement, number 0. Every server that starts from now on keeps deletes."""
        if not self._fs.exists(self._layout.pipeline_seen):
            self._fs.make_dirs(self._layout.pipeline)
            write_checked(self._fs, self._layout.pipeline_seen, "0")

    def ack(self, number: int, newest: Callable[[], int]) -> None:
        """Acknowledges deletes up to a catalog. The number of the `newest` catalog with a delete is saved first, before
        the engine forgets it."""
        if number > self._acked():
            self._fs.make_dirs(self._layout.pipeline)
            deleted_at = newest()
            if deleted_at > self.newest_acked_delete():
                write_checked(self._fs, self._layout.pipeline_told, str(deleted_at))
            write_checked(self._fs, self._layout.pipeline_seen, str(number))
            self._seen = number

    def newest_acked_delete(self) -> int:
        """The newest catalog whose deletes were acknowledged. Raises DamagedNoteError."""
        try:
            return self._number(self._layout.pipeline_told)
        except WrongChecksumError as error:
            raise DamagedNoteError(
                f"{error}. Remove it if no other archive was ever used for this data folder; otherwise move the "
                "archive away to start a new one"
            ) from error

    def _acked(self) -> int:
        if self._seen is None:
            try:
                self._seen = self._number(self._layout.pipeline_seen)
            except WrongChecksumError as error:
                # Confirmed anew by the next round: the engine keeps the deletes until then.
                _log.error("confirmation of the archive cannot be read", extra={"error": str(error)})
                self._seen = 0
        return self._seen

    def _number(self, path: str) -> int:
        text = read_checked(self._fs, path)
        return int(text) if text.isdigit() else 0


# Log history: the small file `pipeline/history` of a data folder names the log that products are built from.
#
#     <16 hex digits>             the name of this folder's history, which the archive stores as well
#     restored                    the folder was restored from a backup, and may take over earlier products
#     <16 hex digits> restored    the takeover under this name has begun
#
# A folder that was put back to an older state, by a restore or from a copy, diverges from the log that an archive
# outside of it was built from. Continuing such an archive would show records that the log does not have, and treat new
# records as archived already. So the archive is rebuilt under a new history name. The folder stores the name before
# the archive does, so a crash in between changes nothing.


class LogHistory:
    def __init__(self, fs: FileSystem, layout: Layout, delete_acks: DeleteAcks, entropy: Entropy) -> None:
        self._fs = fs
        self._layout = layout
        self._delete_acks = delete_acks
        self._entropy = entropy

    def current(self, number: int) -> History:
        """The history of the log whose catalog has this number. Raises DamagedNoteError."""
        try:
            text = read_checked(self._fs, self._layout.pipeline_history)
        except WrongChecksumError as error:
            raise DamagedNoteError(
                f"{error}. Put it back from a copy, or move the archive away, remove the file and start a new archive"
            ) from error
        name, _, word = text.strip().partition(" ")
        if name == RESTORED or (self._delete_acks.is_ahead_of(number) and word != RESTORED):
            name, word = "", RESTORED
        if not name:
            name = self._entropy.token(8).hex()
            self._write(f"{name} {word}".strip())
        return History(name, word == RESTORED, self._delete_acks.newest_acked_delete())

    def finish_takeover(self, history: History, number: int) -> None:
        """Ends a takeover once every product has reconciled with the history."""
        if history.takes_over:
            self._delete_acks.restart(number)
            self._write(history.name)

    def _write(self, text: str) -> None:
        self._fs.make_dirs(self._layout.pipeline)
        write_checked(self._fs, self._layout.pipeline_history, text)


class CatalogDiff:
    """Diffs the catalog against the previous round. It follows the files of changes, and reads the whole catalog only
    at first and after a long time; topics are decoded when a product looks at them."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._root = layout.root
        self._reader = CatalogReader(fs, layout)
        self._changed: set[int] = set()
        self._gone: set[int] | None = None
        """The changes since the last round that was over; None for all."""

    def read(self, history_of: Callable[[int], History]) -> CatalogView:
        """Raises NoCatalogError where there is no catalog. `history_of` maps a catalog number to the log history."""
        found = self._reader.look()
        if found is None:
            raise NoCatalogError(self._root)
        topics, history = self._reader.topics, history_of(found.head.number)
        self._changed |= found.changed
        if self._gone is None:
            changed, gone = CatalogTopics(topics), None
        else:
            self._gone = (self._gone | found.gone) - topics.keys()
            # In the order of ids, as in the whole catalog.
            changed = CatalogTopics(topics, sorted(self._changed & topics.keys()))
            gone = frozenset(self._gone)
        return CatalogView(found.head, changed.values(), CatalogTopics(topics), history, gone)

    def seen(self) -> None:
        """Every product has seen the changes: the next read reports those after them."""
        self._changed, self._gone = set(), set()

    def reset(self) -> None:
        """Reports every topic as changed the next time: a product has missed this diff."""
        self._gone = None


_TASKS_A_CORE = 2

_log = logging.getLogger(__name__)


class ShortError(TopicsError):
    """A task ran out of disk, memory or descriptors, or a store did not answer. The round is tried again later."""


class WorkerPlaceError(TopicsError):
    """A worker does not see the folders of the driver under the same paths. Its output would be lost."""


class NoColdTierError(SettingsError):
    """Segments are in a cold tier, and the run was not told of it."""

    def __init__(self) -> None:
        super().__init__("segments of this data folder are in its cold tier: set TOPICS_COLD_DIR as the server has it")


class Executor(Protocol):
    def parallelism(self) -> int:
        """The number of tasks that run at the same time."""
        ...

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        """Runs pieces as one job named `about`, and yields places of pieces and outcomes as tasks end.

        Raises JobFailedError when a piece has no outcome; outcomes before that count.
        """
        ...

    def footprint(self) -> WorkerStatus | None:
        """The resources of this process and its children; None where Spark runs on another machine."""
        ...

    def probe(self) -> None:
        """Runs an empty job. Raises WorkersUnavailableError where that fails."""
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
        acks_deletes: bool = True,
        places: Sequence[str] = (),
        reporter: RunReporter | None = None,
        server: str = "",
        transfer: str = "",
    ) -> None:
        """`acks_deletes` is set where a product keeps copies that deletes must reach. `places` are folders that tasks
        must prove to see as this process does. `reporter` saves the progress of the run. Tasks on machines without the
        data folder read it from `server`, and write what belongs into it to `transfer`."""
        self._server = server
        self._transfer = transfer
        self._reporter = reporter
        self._places = list(places)
        self._nonce = ""
        self._acks_deletes = acks_deletes
        self._fs = fs
        self._layout = layout
        self._products = products
        self._executor = executor
        self._clock = clock
        self._rules = FrameRules() if rules is None else rules
        self._catalog_diff = CatalogDiff(fs, layout)
        self._packing = TaskPacking()
        self._delete_acks = DeleteAcks(fs, layout)
        self._log_history = LogHistory(fs, layout, self._delete_acks, SystemEntropy())
        self._failed_products: dict[str, Exception] = {}
        """Products that are skipped for the rest of this round, and their errors."""
        self._newest_delete = 0
        """The newest catalog that lists a delete."""
        self.status = load_status(fs, layout)
        self._product_totals = {one.product: one for one in self.status.products}
        """The running totals of each product."""
        self.on_progress: Callable[[int, int], None] = lambda done, total: None

    def round(self) -> bool:
        """Runs one round, up to `round_bytes`; whether there was any work."""
        now = self._clock.now_ms()
        self._failed_products = {}
        view = self._catalog_diff.read(self._log_history.current)
        self._look_over(view)
        quarantined = {product.name: self._quarantined(product.name, now) for product in self._products}
        chores = self._plan(view, quarantined, now)
        if not self._failed_products:
            self._log_history.finish_takeover(view.history, view.number)
        worked = self._work(view, quarantined, chores, now)
        if self._acks_deletes and not self._failed_products:
            applied = min([product.deletes_applied(view.number) for product in self._products], default=view.number)
            self._delete_acks.ack(applied, lambda: self._newest_delete)
        self._save_progress(worked, view)
        for error in self._failed_products.values():
            self._catalog_diff.reset()
            raise error
        self._catalog_diff.seen()
        return worked

    def end_quarantines(self) -> None:
        """Lets the next round try every subject that was left out because it failed."""
        now = self._clock.now_ms()
        ended = tuple(msgspec.structs.replace(one, retry_at_ms=now) for one in self.status.quarantined)
        self._update(quarantined=ended)

    # Planning

    def _look_over(self, view: CatalogView) -> None:
        """Notes the newest delete. Raises NoColdTierError where a segment is in a cold tier that the run has not."""
        untold = self._layout.cold_root is None
        for topic in view.changed:
            # The oldest segments of a topic move first.
            if untold and topic.segments and topic.segments[0].cold:
                raise NoColdTierError
            if topic.removals:
                self._newest_delete = max(self._newest_delete, newest_delete([topic]))

    def _quarantined(self, product: str, now: int) -> QuarantinedSubjects:
        found = [one for one in self.status.quarantined if one.product == product and one.is_active(now)]
        return QuarantinedSubjects(
            frozenset(one.topic_id for one in found if one.topic_id),
            frozenset(one.topic for one in found if not one.topic_id),
        )

    def _plan(self, view: CatalogView, quarantined: dict[str, QuarantinedSubjects], now: int) -> list[ChoreWork]:
        """Reconciles products, notes their missing segments, and returns their chores."""
        self._packing.drop(view)
        chores: list[ChoreWork] = []
        for product in self._products:
            name = product.name
            with self._isolate_errors(name):
                product.reconcile(view, now, quarantined[name])
                for topic in view.changed:
                    self._packing.note(name, topic, product.missing_segments(topic))
                chores += [ChoreWork(name, chore) for chore in product.chores(now, quarantined[name])]
        return chores

    def _isolate_errors(self, name: str) -> "_ErrorIsolation":
        return _ErrorIsolation(name, self._failed_products)

    # Running the job

    def _work(
        self, view: CatalogView, quarantined: dict[str, QuarantinedSubjects], chores: list[ChoreWork], started_ms: int
    ) -> bool:
        active = {
            product.name: quarantined[product.name]
            for product in self._products
            if product.name not in self._failed_products
        }
        if not self._packing.has_any(active) and not chores:
            return False
        self._update(running=True, **self._lag(view))
        rules = self._rules.scaled(self._executor.parallelism())
        pieces = self._pieces(view, active, chores, rules)
        began = self._clock.monotonic()
        totals = CommitResult()
        results = {name: CommitResult() for name in active}
        unavailable: Exception | None = None
        failed: dict[str, set[tuple[int, str]]] = {name: set() for name in active}
        job = RoundJob(self._executor, pieces, self.status.rounds + 1)
        self._report_job(job)
        for part in job.parts(rules.commit_bytes, lambda done: self._report_done(job, done), self._note_failed_job):
            self._publish(view, part.outcomes, part.failures, totals, failed, results)
            self._report_published(_published(results))
            unavailable = unavailable or part.unavailable
        if unavailable is None:
            self._release(failed, started_ms)
        took = self._clock.monotonic() - began
        self._add_totals(results, took)
        published = _published(results)
        totals.records, totals.bytes = published.records, published.bytes
        self._record_round(totals, took, started_ms)
        if unavailable is not None:
            raise unavailable
        return True

    def _pieces(
        self, view: CatalogView, active: dict[str, QuarantinedSubjects], chores: list[ChoreWork], rules: FrameRules
    ) -> list[Piece]:
        task_contexts = {product.name: product.task_context() for product in self._products if product.name in active}
        self._write_nonce()
        blank = Piece(
            self._layout.root, self._layout.cold_root, task_contexts, places=self._places, nonce=self._nonce,
            server=self._server, transfer=self._transfer,
        )  # fmt: skip
        cores = self._executor.parallelism()
        missing = {product.name: product.missing_segments for product in self._products}
        works = self._packing.works(active, view.topics, missing, rules.round_bytes)
        costs = {product.name: product.cost for product in self._products}
        return longest_first(packed(works, chores, blank, rules.group_bytes, _TASKS_A_CORE * cores, costs), cores)

    def _write_nonce(self) -> None:
        """Once a process, before its first job. In place, so that network file systems show it at the next open."""
        if self._nonce or not self._places:
            return
        if self._transfer:
            clear(self._fs, self._transfer)
        nonce = SystemEntropy().token(16).hex()
        for place in self._places:
            self._fs.make_dirs(place)
            file = self._fs.open(nonce_path(place), create=True)
            try:
                file.truncate(0)
                file.write_at(0, nonce.encode())
                file.sync()
            finally:
                file.close()
        self._nonce = nonce

    def _note_failed_job(self, error: JobFailedError) -> None:
        _log.warning("a pipeline job failed and is taken apart", extra={"error": str(error)})
        for product in self._products:
            product.job_failed()

    # Publishing

    def _publish(
        self,
        view: CatalogView,
        outcomes: list[PieceOutcome],
        job_failures: list[tuple[str, Failure]],
        totals: CommitResult,
        failed: dict[str, set[tuple[int, str]]],
        results: dict[str, CommitResult],
    ) -> None:
        if not self._received(outcomes):
            return
        totals.segments += sum([outcome.segments for outcome in outcomes])
        for product in self._products:
            name = product.name
            if name in self._failed_products or name not in failed:
                continue
            made = [one for outcome in outcomes for one in outcome.made.get(name, [])]
            failures = [failure for who, failure in job_failures if who == name]
            failures += [failure for outcome in outcomes for who, failure in outcome.failures if who == name]
            with self._isolate_errors(name):
                result = product.commit(made, self._clock.now_ms()) if made else CommitResult()
                for topic_id in result.topics:
                    if topic_id in view.topics:
                        self._packing.note(name, view.topics[topic_id], product.missing_segments(view.topics[topic_id]))
                failures += result.failures
                results[name].records += result.records
                results[name].bytes += result.bytes
                results[name].segments += result.segments
            results[name].failures += failures
            self._quarantine(name, failures)
            failed[name] |= {(failure.topic_id, failure.topic) for failure in failures}
        misplaced = [outcome.elsewhere for outcome in outcomes if outcome.elsewhere]
        if misplaced:
            self._failed_products.setdefault("", WorkerPlaceError(misplaced[0]))
        short = [outcome.short for outcome in outcomes if outcome.short]
        if short:
            self._failed_products.setdefault("", ShortError(short[0]))

    def _received(self, outcomes: list[PieceOutcome]) -> bool:
        """Copies files that tasks have sent into the data folder. Without them nothing of their outcomes is published,
        and the round is repeated."""
        sent = [path for outcome in outcomes for path in outcome.sent]
        try:
            receive(self._fs, self._transfer, self._layout.root, sent)
        except OSError as error:
            self._failed_products.setdefault("", error)
            discard(self._fs, self._transfer, sent)
            return False
        return True

    def _quarantine(self, product: str, failures: list[Failure]) -> None:
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

    def _release(self, failed: dict[str, set[tuple[int, str]]], started_ms: int) -> None:
        """Ends the quarantine of subjects that were tried again and did not fail."""
        known = tuple(
            one
            for one in self.status.quarantined
            if one.is_active(started_ms)
            or one.product in self._failed_products
            or (one.topic_id, one.topic) in failed.get(one.product, ())
        )
        if known != self.status.quarantined:
            self._update(quarantined=known)

    # Status

    def _add_totals(self, results: dict[str, CommitResult], took: float) -> None:
        """Adds the results of a round to the totals of the products."""
        for name, result in results.items():
            known = self._product_total(name)
            rate = round(result.records / took, 1) if result.records and took > 0 else known.records_per_s
            self._product_totals[name] = msgspec.structs.replace(
                known,
                records=known.records + result.records,
                bytes=known.bytes + result.bytes,
                segments=known.segments + result.segments,
                records_per_s=rate,
                failures=known.failures + len(result.failures) + (name in self._failed_products),
            )

    def _product_total(self, name: str) -> ProductStatus:
        return self._product_totals.get(name) or ProductStatus(name, 0, 0, 0, 0)

    def _record_round(self, totals: CommitResult, took: float, started_ms: int) -> None:
        rate = round(totals.records / took, 1) if took > 0 else 0.0
        status = self.status
        self._update(
            rounds=status.rounds + 1,
            records=status.records + totals.records,
            bytes=status.bytes + totals.bytes,
            segments=status.segments + totals.segments,
            last_run=LastRun(started_ms, int(took * 1000), totals.records, totals.bytes, totals.segments, rate),
            worker=self._executor.footprint() or status.worker,
        )

    def _save_progress(self, worked: bool, view: CatalogView) -> None:
        number = view.number
        if worked and self._reporter is not None:
            self._reporter.round_over()
        if worked or self._failed_products:
            well: dict[str, object] = {"failures": 0, "error": None} if not self._failed_products else {}
            self._update(running=False, due_ms=self._due(), **well, **self._lag(view))
        elif (
            self.status.catalog != number
            or self.status.due_ms != self._due()
            or self.status.is_ahead(self._clock.now_ms())
        ):
            # The catalog is done only now: a round is bounded, and the next one may find more work.
            self._update(running=False, catalog=number, due_ms=self._due(), **self._lag(view))

    def _due(self) -> int | None:
        moments = [product.due_ms() for product in self._products if product.name not in self._failed_products]
        return min([moment for moment in moments if moment is not None], default=None)

    def _lag(self, view: CatalogView) -> dict[str, object]:
        backlog = self._packing.backlog()
        products = tuple(self._product_status(product) for product in self._products)
        return {
            "lag_segments": backlog.segments, "lag_bytes": backlog.bytes, "lag_ms": self._age(backlog.oldest_ts),
            "lag_records": backlog.records, "lag_catalog": view.number, "listed": view.head.listed,
            "products": products,
        }  # fmt: skip

    def _product_status(self, product: Product) -> ProductStatus:
        name = product.name
        backlog, error = self._packing.backlog(name), self._failed_products.get(name)
        return msgspec.structs.replace(
            self._product_total(name),
            lag_segments=backlog.segments,
            lag_bytes=backlog.bytes,
            lag_records=backlog.records,
            rows=self._product_total(name).rows if error is not None else product.rows(),
            lag_ms=self._age(backlog.oldest_ts),
            quarantined=sum(one.product == name for one in self.status.quarantined),
            error=f"{type(error).__name__}: {error}"[:500] if error is not None else None,
        )

    def _age(self, oldest_ts: int | None) -> int:
        return max(self._clock.now_ms() - oldest_ts, 0) if oldest_ts is not None else 0

    def _report_job(self, job: RoundJob) -> None:
        if self._reporter is not None:
            self._reporter.job(job.about, job.tasks, job.bytes)

    def _report_done(self, job: RoundJob, done: int) -> None:
        self.on_progress(done, job.tasks)
        if self._reporter is not None:
            self._reporter.tasks_done(done, job.bytes_done)

    def _report_published(self, result: CommitResult) -> None:
        if self._reporter is not None:
            self._reporter.published(result.records, result.bytes)

    def _update(self, **fields: object) -> None:
        self.status = msgspec.structs.replace(self.status, updated_ms=self._clock.now_ms(), **fields)
        save_status(self._fs, self._layout, self.status)


def _published(results: dict[str, CommitResult]) -> CommitResult:
    """The records that a round has published: of the archive, or where there is none of the product with the most."""
    return results.get(ARCHIVE) or max(results.values(), key=lambda result: result.records, default=CommitResult())


class _ErrorIsolation:
    """Catches the error of one product and keeps it for the end of the round, so that the others continue."""

    def __init__(self, name: str, failed: dict[str, Exception]) -> None:
        self._name = name
        self._failed_products = failed

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> bool:
        if not isinstance(error, Exception):
            return False
        _log.error("a product sits this round out", extra={"product": self._name, "error": str(error)})
        self._failed_products[self._name] = error
        return True
