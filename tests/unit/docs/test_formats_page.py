"""The page of formats matches the modules, and the modules match the code."""

import re
from struct import Struct
from types import ModuleType

import msgspec
import pytest

from tests.unit.docs.pages import read, rows, section, squeezed
from tools.site_reference import FORMAT_MODULES, built
from topics.log import catalog, catalog_files, forward_frames, frame, layout, segment, snapshot_files
from topics.model import records as core_rows
from topics.routers import router_frames
from topics.search.file_index import file_format
from topics.streams import stream_frames

PAGE = built("docs/formats.md")
STRUCTURES = rows(section(PAGE, "## Byte tables and structures"))
LINES = {squeezed(line) for line in PAGE.splitlines()}

# A fixed field of a byte table: its place, its length and its meaning.
_FIELD = re.compile(r"^ +(?P<offset>\d+) +(?P<size>\d+) +(?P<field>\S.*)$", re.MULTILINE)
_TABLE = re.compile(r"^ *offset +size +field$", re.MULTILINE)


def tables(module: ModuleType) -> list[str]:
    """The byte tables of a module's docstring, in order."""
    doc = module.__doc__ or ""
    starts = [match.end() for match in _TABLE.finditer(doc)]
    return [doc[start:].strip("\n").split("\n\n")[0] for start in starts]


def picture(module: ModuleType) -> list[str]:
    """Every line of a docstring that is set apart by its indentation: tables, drawings, bodies."""
    return [squeezed(line) for line in (module.__doc__ or "").splitlines() if line.startswith("    ")]


@pytest.mark.parametrize(
    "module",
    [
        frame,
        core_rows,
        router_frames,
        forward_frames,
        segment,
        catalog,
        catalog_files,
        snapshot_files,
        stream_frames,
    ],
    ids=lambda module: module.__name__,
)
def test_the_page_has_every_line_of_a_modules_tables(module: ModuleType) -> None:
    lines = picture(module)
    assert lines
    assert [line for line in lines if line not in LINES] == []


def test_the_page_has_the_layout_of_the_data_folder() -> None:
    lines = [squeezed(line) for line in (layout.__doc__ or "").split("\n\n", 1)[1].splitlines()]
    assert lines
    assert [line for line in lines if line not in LINES] == []


@pytest.mark.parametrize(
    ("module", "place", "size"),
    [
        (frame, 0, frame.HEADER_BYTES),
        (frame, 1, frame.BLOCK_HEAD.size),
        (core_rows, 0, core_rows.ROW_BYTES),
        (router_frames, 0, router_frames.FORWARD_HEAD.size),
        (segment, 0, segment._DATA_HEAD.size),
        (segment, 1, segment._INDEX_HEAD.size),
    ],
)
def test_the_fixed_fields_add_up_to_the_structure(module: ModuleType, place: int, size: int) -> None:
    end = 0
    for match in _FIELD.finditer(tables(module)[place]):
        assert int(match["offset"]) == end, match["field"]
        end += int(match["size"])
    assert end == size


def test_the_rows_of_a_segment_index_are_those_of_a_block() -> None:
    assert f"{core_rows.ROW_BYTES}n" in tables(segment)[1]
    assert f"{segment._BLOCK.size}b" in tables(segment)[1]


def test_the_page_links_every_module_that_owns_a_format() -> None:
    text = read("docs/formats.md")
    assert [name for name in FORMAT_MODULES if f"[`{name}`](../src/{name.replace('.', '/')}.py)" not in text] == []


@pytest.mark.parametrize("magic", [frame.MAGIC, segment._DATA_MAGIC, segment._INDEX_MAGIC, catalog.MAGIC])
def test_the_page_has_the_magics(magic: bytes) -> None:
    assert f'magic "{magic.decode()}"' in PAGE


def test_the_page_has_every_kind_of_frame() -> None:
    listed = {(cells[0], cells[1]) for cells in rows(section(PAGE, "### Kinds"))}
    assert listed == {(str(kind.value), kind.name) for kind in frame.FrameKind}


@pytest.mark.parametrize(
    "structure",
    [
        snapshot_files.SnapshotHead,
        snapshot_files.WalPosition,
        snapshot_files.TopicState,
        snapshot_files.SegmentState,
        snapshot_files.LostState,
        snapshot_files.KeyState,
        snapshot_files.KeyedState,
    ],
    ids=lambda structure: structure.__name__,
)
def test_the_page_has_the_fields_of_a_snapshots_structures_in_order(structure: type[msgspec.Struct]) -> None:
    [cells] = [
        cells for cells in rows(section(PAGE, "## Byte tables and structures")) if cells[0] == f"`{structure.__name__}`"
    ]
    assert re.findall(r"`(\w+)`", cells[1]) == [field.name for field in msgspec.structs.fields(structure)]


@pytest.mark.parametrize(
    "structure", [router_frames.RouterState, router_frames.RoutersState], ids=lambda structure: structure.__name__
)
def test_the_page_has_the_fields_of_a_routers_structures_in_order(structure: type[msgspec.Struct]) -> None:
    [cells] = [cells for cells in STRUCTURES if cells[0] == f"`{structure.__name__}`"]
    assert re.findall(r"`(\w+)`", cells[1]) == [field.name for field in msgspec.structs.fields(structure)]


@pytest.mark.parametrize(
    "structure",
    [catalog.CatalogHead, catalog.CatalogTopic, catalog.CatalogSegment, catalog.CatalogRemoval],
    ids=lambda structure: structure.__name__,
)
def test_the_page_has_the_fields_of_the_catalogs_structures_in_order(structure: type[msgspec.Struct]) -> None:
    [cells] = [
        cells for cells in rows(section(PAGE, "## Byte tables and structures")) if cells[0] == f"`{structure.__name__}`"
    ]
    assert re.findall(r"`(\w+)`", cells[1]) == [field.name for field in msgspec.structs.fields(structure)]


def test_the_bodies_of_small_frames_have_the_sizes_they_are_reported() -> None:
    """The widths named in the table, such as u64 and u16, are the widths that the encoders write."""
    widths = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
    reported = {}
    for line in picture(frame):
        kind, _, body = line.partition(" ")
        if kind.isupper():
            reported[kind] = sum(widths[word] for word in re.findall(r"\bu\d+\b", body.split("ranges:")[0]))
    assert reported == {
        "CREATE": len(frame.encode_create(1, 2, "", b"")),
        "CONFIG": len(frame.encode_config_change(1, b"")),
        "DROP": 0,
        "DELETE": len(frame.encode_delete(1, [])),
        "EVICT": len(frame.encode_evict(1, expired=True)),
        "CEILING": len(frame.encode_ceiling(1)),
        "FENCE": len(frame.encode_fence("")),
    }
    assert len(frame.encode_delete(1, [(2, 3)])) - reported["DELETE"] == Struct("<QQ").size


def test_the_table_of_versions_is_the_one_of_the_code() -> None:
    table = [tuple(cell.strip() for cell in row) for row in rows(section(PAGE, "## Versions"))]
    assert table == [tuple(one) for one in layout.FORMATS]


def test_the_versions_of_the_table_are_those_of_the_modules() -> None:
    written = {one.what: one.written for one in layout.FORMATS}
    assert written["frame: log files, snapshots, `meta/newest`"] == frame.MAGIC.decode()
    layouts = range(frame.LAYOUT_JSON, frame.LAYOUT_KEYS_WRITTEN + 1)
    assert written["block"] == ", ".join(map(str, layouts))
    assert written["`seg-*.data`"] == segment._DATA_MAGIC.decode()
    assert written["`seg-*.idx`"] == f"{segment._INDEX_MAGIC.decode()}, {segment._INDEX_WRITTEN_MAGIC.decode()}"
    assert written["`meta/catalog`"] == catalog.MAGIC.decode()
    assert written["`meta/catalog-*`"] == catalog_files.CHANGES_MAGIC.decode()
    assert written["`*.companion`"] == file_format.MAGIC.decode()
