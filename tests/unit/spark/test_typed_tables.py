"""A stream's table of typed columns: its content equals the entries in the protocol of streams, after every
operation."""

from typing import Any

import pytest

from tests.unit.spark.archives import ROOT, advance
from tests.unit.spark.folders import Folder
from tests.unit.spark.tables import every_file, read_table
from tests.unit.spark.typed import NESTED, ORDER, Described, nested, run_typed, typed_entries, typed_pipeline
from tests.unit.streams.describing import rename
from topics.spark.iceberg.typed_files import folder_of
from topics.spark.pipeline.rounds import ShortError
from topics.testing import NO_FAULTS, Fault, FaultPlan, FaultyFileSystem

RETIRE_MS = 600_001
NUMBERED = {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}}


def order(n: int) -> dict[str, Any]:
    return {"id": n, "total": n + 0.5, "paid": n % 2 == 0, "at": f"2026-03-01T10:{n % 60:02d}:00Z", "name": f"ü{n}"}


@pytest.fixture
def described() -> Described:
    made = Described(Folder())
    made.create("orders")
    for first in range(0, 40, 10):
        made.append("orders", *[order(n) for n in range(first, first + 10)], key=f"k{first}")
        made.folder.seal()
    return made


def shown(described: Described, name: str = "orders") -> dict[int, Any]:
    return typed_entries(described.folder.disk, name)


def test_members_are_columns(described: Described) -> None:
    folder = described.folder
    run_typed(folder.disk, folder, 1)
    assert shown(described) == described.promoted("orders") and len(shown(described)) == 40
    table = read_table(folder.disk, root=f"{ROOT}/typed/orders")
    assert table is not None
    kinds = {field.name: str(field.field_type) for field in table.schema().fields}
    assert kinds == {
        "_seq": "long", "_ts": "timestamptz", "_node": "string", "_tag": "string", "_meta": "string",
        "_rest": "string", "id": "long", "total": "double", "paid": "boolean", "at": "timestamptz", "name": "string",
        "lines": "string",
    }  # fmt: skip
    rows = table.scan("id >= 10 and id < 12").to_arrow().to_pylist()
    assert [(row["id"], row["_tag"], row["_rest"]) for row in rows] == [(10, "k10", None), (11, "k10", None)]


def test_readers_prune_files_by_the_times_of_entries(described: Described) -> None:
    folder = described.folder
    for round_, deleted in ((1, None), (2, "k10")):
        if deleted is not None:
            # Another process, which knows the files from the folder.
            folder.delete("orders", tag=deleted)
            folder.checkpoint()
        run_typed(folder.disk, folder, round_, group_bytes=1)
        table = read_table(folder.disk, root=f"{ROOT}/typed/orders")
        assert table is not None
        late = table.scan("at >= '2026-03-01T10:35:00+00:00'")
        assert sorted(row["id"] for row in late.to_arrow().to_pylist()) == [35, 36, 37, 38, 39]
        assert len(list(late.plan_files())) == 1 < len(list(table.scan().plan_files()))
    assert shown(described) == described.promoted("orders")


def test_misfit_values_are_in_the_rest(described: Described) -> None:
    odd = [{"id": 1, "more": {"a": [1]}}, {"id": 2, "paid": None}, {"id": 3, "total": 2**60 + 1}]
    odd += [{"id": 2**70, "lines": [{"n": 1}], "name": ""}, {"id": 4}]
    described.append("orders", *odd)
    folder = described.folder
    folder.seal()
    run_typed(folder.disk, folder, 1)
    assert shown(described) == described.promoted("orders")


def test_objects_are_structs_and_arrays_are_lists() -> None:
    described = Described(Folder())
    described.create("orders", NESTED)
    described.append("orders", *[nested(n) for n in range(20)])
    odd: list[dict[str, Any]] = [
        {"place": {"city": "b", "more": [1]}},
        {"stops": [{"n": 1}]},
        {"place": {}},
        {"price": 1e300},
    ]
    odd += [{"stops": [{"city": "b", "n": 1}]}, {"tags": []}]
    # This library reads a list of structs that is null as an empty one, so every entry has one.
    described.append("orders", *[{"id": 20 + n, "stops": [], **one} for n, one in enumerate(odd)])
    folder = described.folder
    folder.seal()
    run_typed(folder.disk, folder, 1)
    assert shown(described) == described.promoted("orders") and len(shown(described)) == 26
    table = read_table(folder.disk, root=f"{ROOT}/typed/orders")
    assert table is not None
    kinds = {field.name: str(field.field_type) for field in table.schema().fields if not field.name.startswith("_")}
    place = "struct<{0}: city: optional string, {1}: at: optional timestamptz>"
    assert kinds == {
        "id": "long", "price": "decimal(38, 2)", "place": place.format(104, 105), "tags": "list<string>",
        "stops": f"list<{place.format(110, 111)}>",
    }  # fmt: skip
    rows = table.scan("place.city = 'c7'").to_arrow().to_pylist()
    assert [row["id"] for row in rows] == [7]


def test_a_member_that_a_struct_gains_is_an_evolution_of_the_table() -> None:
    described = Described(Folder())
    narrow = {**NESTED, "required": ["id", "place"]}
    described.create("orders", narrow)
    described.append("orders", *[nested(n) for n in range(5)])
    folder = described.folder
    folder.seal()
    run_typed(folder.disk, folder, 1)
    before = read_table(folder.disk, root=f"{ROOT}/typed/orders")
    text = {"type": "string"}
    members = {**NESTED["properties"]["place"]["properties"], "zip": text}
    wider = {**narrow, "properties": {**NESTED["properties"], "place": {"type": "object", "properties": members}}}
    described.evolve("orders", wider, {"op": "add", "path": "/place/zip", "schema": text, "default": "?"})
    described.append("orders", {"id": 5, "place": {"city": "b", "zip": "1"}, "stops": []})
    folder.seal()
    run_typed(folder.disk, folder, 2)
    assert shown(described) == described.promoted("orders")
    after = read_table(folder.disk, root=f"{ROOT}/typed/orders")
    assert before is not None and after is not None
    assert after.metadata.table_uuid == before.metadata.table_uuid
    for name in ("place", "place.city", "place.at", "stops.element.city"):
        assert after.schema().find_field(name).field_id == before.schema().find_field(name).field_id
    assert after.schema().find_field("place.zip").field_id > before.schema().highest_field_id


def test_a_new_version_is_an_evolution_of_the_table(described: Described) -> None:
    folder = described.folder
    run_typed(folder.disk, folder, 1)
    before = read_table(folder.disk, root=f"{ROOT}/typed/orders")
    assert before is not None
    fields = {**ORDER["properties"], "number": {"type": "integer"}, "total": {"type": "number"}}
    del fields["id"], fields["lines"]
    fields["lines"] = {"type": "array"}
    described.evolve(
        "orders", {"type": "object", "required": ["number"], "properties": fields}, rename("/id", "/number")
    )
    described.append("orders", {"number": 1000, "total": 1})
    folder.seal()
    run_typed(folder.disk, folder, 2)
    entries = shown(described)
    assert entries == described.promoted("orders") and entries[1]["number"] == 0 and entries[41]["number"] == 1000
    after = read_table(folder.disk, root=f"{ROOT}/typed/orders")
    assert after is not None and after.metadata.table_uuid == before.metadata.table_uuid
    numbers = {field.name: field.field_id for field in before.schema().fields}
    kept = {field.name: field.field_id for field in after.schema().fields}
    assert "id" not in kept and kept["number"] > max(numbers.values())
    assert {name: kept[name] for name in kept if name != "number"} == {n: i for n, i in numbers.items() if n != "id"}
    # A caller that reads the snapshot of before sees the columns of before.
    old = before.scan(snapshot_id=before.metadata.current_snapshot_id).to_arrow()
    assert old.num_rows == 40 and "id" in old.column_names


def test_one_version_is_shown_until_all_of_the_next_is_made(described: Described) -> None:
    folder = described.folder
    run_typed(folder.disk, folder, 1)
    described.evolve("orders", NUMBERED, rename("/id", "/number"))
    described.append("orders", {"number": 1000})
    folder.seal()
    folder.delete("orders", tag="k10")
    folder.delete("orders", before_seq=5)
    folder.checkpoint()
    made = typed_pipeline(folder.disk, folder, 2, group_bytes=1)
    seen = []
    while made.round():
        table = read_table(folder.disk, root=f"{ROOT}/typed/orders")
        assert table is not None
        names = {field.name for field in table.schema().fields}
        seen.append("number" in names)
        whole = described.promoted("orders")
        assert shown(described).keys() == {seq for seq in whole if seq <= 40 or "number" in names}
    assert False in seen and seen == sorted(seen)
    assert shown(described) == described.promoted("orders")


def test_deletes_caps_compactions_and_drops_reach_it(described: Described) -> None:
    folder = described.folder
    disk = folder.disk
    run_typed(disk, folder, 1)
    folder.delete("orders", tag="k10")
    folder.checkpoint()
    made = typed_pipeline(disk, folder, 2)
    made.round()
    assert len(shown(described)) == 30, "with the first round"
    for first in range(40, 140, 10):
        described.append("orders", *[order(n) for n in range(first, first + 10)], key=f"k{first}")
        folder.seal()
    run_typed(disk, folder, 3)
    assert shown(described) == described.promoted("orders") and len(shown(described)) == 130
    folder.delete("orders", tag="k70")
    folder.checkpoint()
    run_typed(disk, folder, 4, deleted_share=0.0)
    advance(folder.clock, RETIRE_MS)
    run_typed(disk, folder, 5, deleted_share=0.0)
    assert shown(described) == described.promoted("orders") and len(shown(described)) == 120
    held = [seq for path, data in every_file(disk, f"{ROOT}/typed").items() for seq in seqs_in(data)]
    assert sorted(held) == sorted(described.promoted("orders")), "what is deleted is in no file"
    folder.drop("orders")
    folder.checkpoint()
    run_typed(disk, folder, 6)
    assert shown(described) == {}
    advance(folder.clock, RETIRE_MS)
    run_typed(disk, folder, 7)
    assert not every_file(disk, f"{ROOT}/typed")


def seqs_in(data: bytes) -> list[int]:
    import io

    import pyarrow.parquet as pq

    if data[:4] != b"PAR1":
        return []
    table = pq.read_table(io.BytesIO(data))
    return list(table["_seq"].to_pylist()) if "_seq" in table.column_names else []


def test_old_typed_file_hides_rows_missing_from_the_rewritten_archive_file(described: Described) -> None:
    """The archive is rewritten by a run that makes no twins, so that old ones stand for new files."""
    folder = described.folder
    run_typed(folder.disk, folder, 1)
    folder.delete("orders", before_seq=5)
    folder.checkpoint()
    made = typed_pipeline(folder.disk, folder, 2, deleted_share=0.0)
    made.round()
    assert [file for file in every_file(folder.disk, f"{ROOT}/typed")]
    # Another process, before any twin of what was rewritten is made: it looks, and shows.
    later = typed_pipeline(folder.disk, folder, 3)
    product = later._products[1]
    view = later._catalog_diff.read(later._log_history.current)
    for one in later._products:
        one.reconcile(view, folder.clock.now_ms(), later._quarantined(one.name, 0))
    assert shown(described) == described.promoted("orders") and len(shown(described)) == 36
    assert product.chores(0, later._quarantined("typed", 0)), "there is still something to be made"
    run_typed(folder.disk, folder, 4)
    assert shown(described) == described.promoted("orders")


def test_a_task_without_room_leaves_nothing(described: Described) -> None:
    place = f"{ROOT}/typed/orders/data/"
    plan = FaultPlan(call=1, fault=Fault.SHORT, lasting=True, within=place, only=frozenset(("write",)))
    fs = FaultyFileSystem(described.folder.disk, plan)
    made = typed_pipeline(fs, described.folder, 1)
    with pytest.raises(ShortError):
        while made.round():
            pass
    assert fs.failed and described.folder.disk.list_dir(place.rstrip("/")) == []
    fs.plan = NO_FAULTS
    while made.round():
        pass
    assert shown(described) == described.promoted("orders")


def test_a_stream_that_is_made_again_begins_anew(described: Described) -> None:
    folder = described.folder
    run_typed(folder.disk, folder, 1)
    folder.drop("orders")
    described.create("orders", {"type": "object", "properties": {"id": {"type": "string"}}})
    described.append("orders", {"id": "a"}, {"id": "b"})
    folder.seal()
    run_typed(folder.disk, folder, 2)
    assert shown(described) == {1: {"id": "a"}, 2: {"id": "b"}}


def test_only_what_is_asked_for_and_has_a_schema(described: Described) -> None:
    folder = described.folder
    described.create("chat/42", {"type": "object", "properties": {"text": {"type": "string"}}})
    described.append("chat/42", {"text": "hi"})
    folder.append("plain", {"id": 1})
    folder.seal()
    run_typed(folder.disk, folder, 1, ("chat/*", "plain"))
    assert folder.disk.list_dir(f"{ROOT}/typed") == ["chat~2f42"] and folder_of("chat/42") == "typed/chat~2f42"
    assert shown(described, "chat/42") == {1: {"text": "hi"}}
    # The setting no longer includes the stream.
    run_typed(folder.disk, folder, 2, ("plain",))
    assert shown(described, "chat/42") == {}
    advance(folder.clock, RETIRE_MS)
    run_typed(folder.disk, folder, 3, ("plain",))
    assert not every_file(folder.disk, f"{ROOT}/typed")


@pytest.mark.parametrize("name", [".", ".."])
def test_no_stream_is_called_so_that_its_table_is_elsewhere(described: Described, name: str) -> None:
    """The protocol lets streams be called so, and one of them must not cost all others their tables."""
    folder = described.folder
    described.create(name)
    described.append(name, {"id": 1}, {"id": 2})
    folder.seal()
    run_typed(folder.disk, folder, 1)
    assert folder_of(name) == f"typed/{'~2e' * len(name)}"
    assert shown(described, name) == {1: {"id": 1}, 2: {"id": 2}}
    assert shown(described) == described.promoted("orders")


def test_a_run_that_finds_nothing_to_do_changes_nothing(described: Described) -> None:
    folder = described.folder
    run_typed(folder.disk, folder, 1)
    before = every_file(folder.disk, f"{ROOT}/typed")
    assert not typed_pipeline(folder.disk, folder, 2).round()
    assert every_file(folder.disk, f"{ROOT}/typed") == before
