"""The archive's table in an independent library, on any file system."""

import io

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from tests.unit.spark.archives import ROOT
from tests.unit.spark.folders import Folder
from topics.log.fs import FileSystem, read_whole
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.iceberg.catalogs import FolderPointer
from topics.spark.iceberg.manifests import TableIO
from topics.spark.iceberg.table import ArchiveTable, TableFollower
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import InlineExecutor
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.task_packing import FrameRules
from topics.testing import SeededEntropy

Rows = dict[tuple[str, int, int], str]
"""topic, epoch, seq -> data"""


def table_of(fs: FileSystem, seed: int, keep_ms: int, root: str = ROOT) -> ArchiveTable:
    return ArchiveTable(fs, root, FolderPointer(fs, root), SeededEntropy(seed), keep_ms)


def shown_pipeline(fs: FileSystem, folder: Folder, seed: int, root: str = ROOT, **rules: float) -> Pipeline:
    """A pipeline whose archive is a table, too, as a new process would make it."""
    frame = {"group_bytes": 2000, **{name: rules.pop(name) for name in FrameRules.__struct_fields__ if name in rules}}
    chosen = ArchiveRules(**rules)  # type: ignore[arg-type]
    follower = TableFollower(table_of(fs, seed + 1_000_000, chosen.retire_ms, root), root)
    product = ArchiveProduct(fs, root, chosen, SeededEntropy(seed), follower)
    return Pipeline(
        fs, folder.layout, [product], InlineExecutor(fs), folder.clock, FrameRules(**frame)  # type: ignore[arg-type]
    )  # fmt: skip


def run_shown(fs: FileSystem, folder: Folder, seed: int, root: str = ROOT, **rules: float) -> None:
    """Rounds until there is nothing to do."""
    made = shown_pipeline(fs, folder, seed, root, **rules)
    for _ in range(50):
        if not made.round():
            return
    raise AssertionError("the pipeline never comes to an end")


def read_table(fs: FileSystem, ahead: bool = False, root: str = ROOT) -> Table | None:
    """The table by its folder alone: the version of the hint; with `ahead` a later one beside it, as Spark finds it."""
    # Runs of one seed on several disks give files the same names.
    clear_manifest_cache()
    hint = read_whole(fs, f"{root}/metadata/version-hint.text")
    if hint is None:
        return None
    number = int(hint)
    while ahead and fs.exists(f"{root}/metadata/v{number + 1}.metadata.json"):
        number += 1
    location = f"{root}/metadata/v{number}.metadata.json"
    data = read_whole(fs, location)
    assert data is not None, f"the hint names version {number}, which is not there"
    metadata = TableMetadataUtil.parse_raw(data.decode())
    return Table(("topics", "records"), metadata, location, TableIO(fs), NoopCatalog("folder"))


def table_rows(fs: FileSystem, ahead: bool = False, root: str = ROOT) -> Rows:
    """Returns the rows that a reader receives; a row that is there twice is an error."""
    table = read_table(fs, ahead, root)
    return rows_of(table) if table is not None else {}


def rows_of(table: Table, snapshot_id: int | None = None) -> Rows:
    found: Rows = {}
    columns = table.scan(snapshot_id=snapshot_id).to_arrow().select(["topic", "epoch", "seq", "data"]).to_pydict()
    for topic, epoch, seq, data in zip(*columns.values(), strict=True):
        assert (topic, epoch, seq) not in found, f"record {seq} of {topic} is there twice"
        found[topic, epoch, seq] = data
    return found


def of_topic(rows: Rows, topic: str) -> dict[int, str]:
    return {seq: data for (name, _, seq), data in rows.items() if name == topic}


def every_file(fs: FileSystem, root: str = ROOT) -> dict[str, bytes]:
    """All files below a folder, with their bytes."""
    found: dict[str, bytes] = {}
    for name in fs.list_dir(root):
        path = f"{root}/{name}"
        try:
            found |= every_file(fs, path)
        except (NotADirectoryError, FileNotFoundError):
            found[path] = read_whole(fs, path) or b""
    return found


def payloads(data: bytes) -> list[str]:
    """The payloads in a data file; none in a file of any other kind."""
    import pyarrow.parquet as pq

    if data[:4] != b"PAR1":
        return []
    table = pq.read_table(io.BytesIO(data))
    return list(table["data"].to_pylist()) if "data" in table.column_names else []
