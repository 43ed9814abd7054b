"""Archive check: compares the archive's files and tables with its ledger, and repairs what differs.

| found | remedy |
|---|---|
| a data file that is lost, or is not the one that was written | the next run copies its records from the log again |
| the same, and the log no longer has its records | the file leaves the archive; its records are lost |
| a table that cannot be read, or shows other files or deletes than the ledger names | made again from the ledger |
| a file of a typed table that is lost or damaged | built again by the next run |
| a ledger that cannot be read | none: put it back from a copy |

The check writes nothing. It compares tables only while no run is at work, because a run changes the ledger first.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from topics.log.catalog import CatalogTopic
from topics.log.catalog_files import read_catalog
from topics.log.fs import FileSystem
from topics.log.layout import Layout
from topics.model.settings import Settings
from topics.spark.archive.archive_plan import ArchiveRules, missing_files
from topics.spark.archive.archive_state import ArchiveState
from topics.spark.archive.data_files import ArchiveFile, in_parallel, problem_of
from topics.spark.archive.ledger import ArchiveDamagedError, ArchiveStore
from topics.spark.iceberg.table import TableFollower
from topics.spark.iceberg.typed_tables import TypedTable
from topics.spark.pipeline.pipeline_settings import archive_root, layout_of
from topics.spark.pipeline.pipeline_worker import table_of, typed_tables
from topics.spark.pipeline.status import load_status, save_status
from topics.spark.pipeline.typed_product import typed_folders

_BATCH = 256

FROM_LOG = "its records are copied from the log again by the next run"
LOST = "the log no longer has its records: the file leaves the archive, unless it is put back from a copy"
FROM_LEDGER = "the table is made again from the ledger"
BUILT_AGAIN = "the file is built again by the next run"
NO_REPAIR = "put the ledger back from a copy; there is no repair, as a guess could show deleted records"


class ArchiveFinding(msgspec.Struct, frozen=True):
    where: str
    what: str
    remedy: str


class LostRecords(msgspec.Struct, frozen=True):
    """Records of a lost file that the log no longer has; `records` is an upper bound."""

    topic: str
    from_seq: int
    to_seq: int
    records: int


class ArchiveReport(msgspec.Struct):
    archive: str
    commit: int = 0
    """The number of the ledger's last commit."""
    files: int = 0
    bytes: int = 0
    records: int = 0
    """The records in live files, including hidden ones."""
    tables: int = 0
    """The tables that were compared with the ledger."""
    findings: list[ArchiveFinding] = []
    lost: list[LostRecords] = []
    repaired: bool = False
    note: str = ""

    @property
    def sound(self) -> bool:
        return not self.findings


class _Tables(NamedTuple):
    records: TableFollower
    typed: Mapping[str, TypedTable]


class ArchiveCheck:
    """Checks and repairs the archive of resolved settings."""

    def __init__(self, settings: Settings, fs: FileSystem) -> None:
        self._settings = settings
        self._fs = fs
        self._layout: Layout = layout_of(settings)
        self._store = ArchiveStore(fs, archive_root(settings))

    def verify(self, tables: bool, on_total: Callable[[int], None], on_bytes: Callable[[int], None]) -> ArchiveReport:
        """Compares the files, and with `tables` the tables, with the ledger."""
        report = ArchiveReport(self._store.root)
        try:
            state = self._store.load()
        except (ArchiveDamagedError, msgspec.DecodeError) as error:
            report.findings.append(ArchiveFinding(f"{self._store.root}/ledger", str(error), NO_REPAIR))
            return report
        report.commit = state.number
        report.files, report.records = len(state.files), sum(file.rows for file in state.files.values())
        on_total(sum(file.bytes for file in state.files.values()))
        self._check_files(state, report, on_bytes)
        if tables and state.number:
            self._check_tables(state, report)
        return report

    def repair(self, now_ms: int, on_total: Callable[[int], None], on_bytes: Callable[[int], None]) -> ArchiveReport:
        """Repairs the findings of `verify`, and reports them. The caller holds the pipeline lock."""
        report = self.verify(True, on_total, on_bytes)
        if report.sound or any(one.remedy == NO_REPAIR for one in report.findings):
            return report
        state, tables = self._store.load(), self._tables()
        damaged = self._damaged(report)
        found = missing_files([path for path in damaged if path in state.files], state, self._topics(), give_up=True)
        if found.events:
            self._store.commit(state, found.events, now_ms)
        # Retired files stay for a while for their readers, but these cannot be read.
        self._store.remove_files(damaged)
        for finding in report.findings:
            if finding.remedy == BUILT_AGAIN:
                with suppress(FileNotFoundError):
                    self._fs.remove(finding.where)
        tables.records.follow(state, (), now_ms)
        # Makes a server start the pipeline, which copies and builds what is missing.
        status = load_status(self._fs, self._layout)
        save_status(self._fs, self._layout, msgspec.structs.replace(status, catalog=0))
        report.repaired = True
        return report

    def _damaged(self, report: ArchiveReport) -> list[str]:
        root = f"{self._store.root}/"
        return [one.where.removeprefix(root) for one in report.findings if one.remedy in (FROM_LOG, LOST)]

    def _check_files(self, state: ArchiveState, report: ArchiveReport, on_bytes: Callable[[int], None]) -> None:
        def problem(file: ArchiveFile) -> str | None:
            return problem_of(self._fs, self._store.path_of(file.path), file.bytes, file.tail)

        files, wrong = list(state.files.values()), dict[str, str]()
        for begin in range(0, len(files), _BATCH):
            part = files[begin : begin + _BATCH]
            found = in_parallel(problem, part, self._store.root)
            wrong |= {file.path: what for file, what in zip(part, found, strict=True) if what is not None}
            report.bytes += sum(file.bytes for file in part)
            on_bytes(sum(file.bytes for file in part))
        told = missing_files(wrong, state, self._topics())
        for path, what in wrong.items():
            remedy = LOST if path in told.lost else FROM_LOG
            report.findings.append(ArchiveFinding(self._store.path_of(path), what, remedy))
        report.lost += [
            LostRecords(run.topic, run.first_seq, run.last_seq, run.rows)
            for path in told.lost
            for run in state.files[path].runs
            if run.topic_id in state.topics
        ]

    def _check_tables(self, state: ArchiveState, report: ArchiveReport) -> None:
        tables = self._tables()
        report.tables = 1 + len(tables.typed)
        report.findings += [ArchiveFinding(where, what, FROM_LEDGER) for where, what in tables.records.problems(state)]
        for folder, table in tables.typed.items():
            for where, what in table.problems():
                is_data = where.startswith(f"{self._store.root}/{folder}/data/")
                report.findings.append(ArchiveFinding(where, what, BUILT_AGAIN if is_data else FROM_LEDGER))

    def _tables(self) -> _Tables:
        rules = ArchiveRules()
        make = typed_tables(self._settings, self._fs, rules)
        typed = {folder: make(folder) for folder in typed_folders(self._fs, self._store.root)}
        return _Tables(table_of(self._settings, self._fs, rules), typed)

    def _topics(self) -> dict[int, CatalogTopic]:
        catalog = read_catalog(self._fs, self._layout)
        return {} if catalog is None else catalog.by_id()
