"""The page of /v1 lists all codes, headers, settings, and the structures of its frames."""

import json
import re

import msgspec
import pytest

from tests.unit.docs.pages import ROOT, rows, section, stream_pages
from tools.site_reference import built
from topics.api.error_responses import V1_CODE_BY_STATUS, refusal_of
from topics.api.v1.protocol import RESOURCES
from topics.model.errors import TopicsError
from topics.model.settings import SETTINGS
from topics.schema.contract import PROFILES
from topics.schema.lenses import OP_BY_NAME, parse_lens
from topics.schema.registry import Chain, CompiledLens
from topics.streams import stream_frames

PAGE = stream_pages()


def test_every_word_of_the_protocol_is_there_with_the_reasons_below_it() -> None:
    table = [cells for cells in rows(section(PAGE, "## Errors")) if len(cells) == 3 and cells[0].isdigit()]
    assert {int(cells[0]): re.findall(r"`(\w+)`", cells[1])[0] for cells in table} == V1_CODE_BY_STATUS
    for status, _, reasons in table:
        for reason in re.findall(r"`(\w+)`", reasons):
            made = type("Made", (TopicsError,), {"code": reason})("")
            assert refusal_of(made, "/v1/stream/a")[0] == int(status)


def test_every_header_of_an_answer_is_there() -> None:
    """The headers that the handlers write, in lower case."""
    sources = [path.read_text() for path in (ROOT / "src/topics/api/v1").glob("*.py")]
    written = {name for text in sources for name in re.findall(r'\("((?:stream|producer)-[a-z-]+)",', text)}
    assert len(written) > 10
    assert [name for name in sorted(written) if name not in PAGE.lower()] == []


def test_every_reserved_segment_is_there() -> None:
    assert [name for name in sorted(RESOURCES) if f"`{name}`" not in PAGE] == []


def test_its_settings_are_there() -> None:
    names = [setting.name for setting in SETTINGS if setting.name.startswith("streams_")]
    assert names
    assert [name for name in names if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize(
    "structure",
    [
        stream_frames.StreamMark,
        stream_frames.StreamPart,
        stream_frames.Producer,
        stream_frames.Origin,
        stream_frames.ForkRequest,
    ],
)
def test_the_structures_of_its_frames_are_on_the_page_of_formats(structure: type[msgspec.Struct]) -> None:
    table = rows(section(built("docs/formats.md"), "## Byte tables and structures"))
    reported = {cells[0].strip("`"): re.findall(r"`(\w+)`", cells[1]) for cells in table}
    assert [name for name in reported[structure.__name__] if name in structure.__struct_fields__] == list(
        structure.__struct_fields__
    )


def test_the_table_of_lenses_is_what_they_do() -> None:
    table = [cells for cells in rows(section(PAGE, "## Lenses")) if cells[0].startswith("`{")]
    ops = {}
    for op, before, after in ([json.loads(cell.strip("`")) for cell in cells] for cells in table):
        lens = {"apiVersion": "durable.lens/v1", "schema": "s", "from": 1, "to": 2, "ops": [op]}
        assert Chain([CompiledLens(parse_lens(lens).ops)]).apply(before, 100) == after, op
        ops[op["op"]] = op
    assert ops.keys() == OP_BY_NAME.keys()


def test_every_profile_is_there() -> None:
    table = rows(section(PAGE, "# Profiles"))
    assert {cells[0].strip("`") for cells in table if cells[0].startswith("`")} == PROFILES.keys()
