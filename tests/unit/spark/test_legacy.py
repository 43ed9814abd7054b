"""Archives of before the ledger are read as they are, and taken over by the first run that may change them."""

import base64
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.spark.archives import ROOT, advance, archived, check_archive, data_files, run_all, state_of
from tests.unit.spark.folders import Folder
from topics.log.fs import FileSystem, replace_file
from topics.model.records import Record
from topics.spark.archive.data_files import ARCHIVE_SCHEMA
from topics.spark.archive.delete_masks import Mask
from topics.spark.archive.ledger import ArchiveDamagedError, ArchiveStore
from topics.testing import FakeDisk, PowerCut, Survival

TOPIC = "topic_id=0000000000000001"


def old_archive(folder: Folder, packed: bool = False) -> None:
    """Records 1 to 6 of topic 1 in two files, of which 2 is deleted; and a file that a killed run left."""
    fs, ts = folder.disk, folder.clock.now_ms()
    day = "2023-11-14"
    files = []
    for first in (1, 4):
        path = f"date={day}/{first:020d}-{first + 2:020d}-aa.parquet"
        write(fs, f"{ROOT}/{TOPIC}/{path}", range(first, first + 3), ts)
        files.append(
            {"path": path, "date": day, "first_seq": first, "last_seq": first + 2, "rows": 3, "bytes": 1000,
             "first_ts": ts, "last_ts": ts}
        )  # fmt: skip
    write(fs, f"{ROOT}/{TOPIC}/date={day}/left.parquet", [1], ts)
    deletes: dict[str, object] = {"version": 1, "deleted": [[2, 2]]}
    if packed:
        deletes = {"version": 2, "deleted": [], "packed": base64.b64encode(Mask.of([(2, 2)]).packed()).decode()}
    manifest = {
        "topic_id": 1, "epoch": 1, "topic": "orders", "number": 7, "updated_ms": ts, "catalog": 1, "files": files,
        "covered": [[1, 6]], "hidden_ms": ts, "retired": [], **deletes,
    }  # fmt: skip
    replace_file(fs, f"{ROOT}/{TOPIC}/manifest.json", json.dumps(manifest).encode())


def write(fs: FileSystem, path: str, seqs: range | list[int], ts: int) -> None:
    rows = [
        {"topic": "orders", "epoch": 1, "seq": seq, "ts": ts * 1000, "node": None, "tag": f"t{seq}", "meta": None,
         "data": str(seq), "content_type": "application/json"}
        for seq in seqs
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, ARCHIVE_SCHEMA)
    target = io.BytesIO()
    pq.write_table(table, target)
    fs.make_dirs(path.rpartition("/")[0])
    replace_file(fs, path, target.getvalue())


def prepared(packed: bool = False) -> Folder:
    """A log whose first six records are archived in the old way, and three that are new."""
    folder = Folder()
    for first in (1, 4, 7):
        folder.append("orders", *[Record.of(seq, tag=f"t{seq}") for seq in range(first, first + 3)])
        folder.seal()
    folder.delete("orders", tag="t2")
    folder.checkpoint()
    old_archive(folder, packed)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_it_is_read_as_it_is_and_goes_on(packed: bool) -> None:
    folder = prepared(packed)
    assert archived(folder.disk, "orders") == {seq: str(seq) for seq in (1, 3, 4, 5, 6)}
    run_all(folder.disk, folder, deleted_share=1)
    assert archived(folder.disk, "orders") == {seq: str(seq) for seq in (1, 3, 4, 5, 6, 7, 8, 9)}
    check_archive(folder.disk)
    assert not folder.disk.exists(f"{ROOT}/{TOPIC}/manifest.json")
    assert data_files(folder.disk) == state_of(folder.disk).named()
    # What was hidden before has the deadline that it had, and its file becomes one of today.
    advance(folder.clock, 86_400_000)
    run_all(folder.disk, folder)
    assert not any(path.startswith(f"{TOPIC}/") and "0001-" in path for path in state_of(folder.disk).files)
    assert archived(folder.disk, "orders") == {seq: str(seq) for seq in (1, 3, 4, 5, 6, 7, 8, 9)}
    check_archive(folder.disk)


def test_a_manifest_that_cannot_be_read_stops_everything() -> None:
    folder = prepared()
    for broken in (b"{", b'{"version": 9, "topic_id": 1, "epoch": 1, "topic": "orders"}'):
        replace_file(folder.disk, f"{ROOT}/{TOPIC}/manifest.json", broken)
        with pytest.raises(ArchiveDamagedError, match=r"manifest\.json"):
            ArchiveStore(folder.disk, ROOT).load()
        with pytest.raises(ArchiveDamagedError):
            run_all(folder.disk, folder)
    assert folder.disk.exists(f"{ROOT}/{TOPIC}/manifest.json")


@pytest.mark.parametrize("survival", [Survival.EVERYTHING, Survival.NOTHING, Survival.SCATTERED])
def test_a_takeover_may_be_cut_short_anywhere(survival: Survival) -> None:
    folder = prepared()
    start = folder.disk
    assert isinstance(start, FakeDisk)
    whole = start.clone()
    before = whole.call_count
    run_all(whole, folder, seed=3)
    for call in range(1, whole.call_count - before + 1, 2):
        disk = start.clone()
        disk.stop_before = disk.call_count + call
        with pytest.raises(PowerCut):
            run_all(disk, folder, seed=3)
        after = disk.crash(survival, seed=call)
        assert archived(after, "orders").keys() >= {1, 3, 4, 5, 6}, call
        assert 2 not in archived(after, "orders"), call
        run_all(after, folder, seed=4 + call)
        assert archived(after, "orders") == {seq: str(seq) for seq in (1, 3, 4, 5, 6, 7, 8, 9)}, call
        check_archive(after)
        assert data_files(after) == state_of(after).named(), call
