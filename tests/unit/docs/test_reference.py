"""The pages that list things list all of them: settings, errors, exit codes, log lines, statistics, commands."""

import re
from collections.abc import Iterator

import msgspec
import pytest

from tests.unit.docs.pages import PAGES, ROOT, blocks, name_of, read, rows, section, squeezed
from tools.site_reference import built
from topics import cli
from topics.api.error_responses import STATUS_BY_CODE, V1_STATUS_BY_CODE
from topics.engine.backpressure import ThrottleStats
from topics.engine.stats import EngineStats, ShardStats
from topics.log.object_store.store import StoreStats
from topics.model import errors
from topics.model.errors import Finding
from topics.model.seq_ranges import LossReason
from topics.model.settings import SETTINGS, Setting

# Settings


def settings_row(setting: Setting) -> str:
    """The row that the table of settings must have."""
    default = "not set" if setting.default is None else f"`{setting.default}`"
    accepted = setting.accepted.removeprefix("one of ").removeprefix("a whole number ").removeprefix("a non-empty ")
    return f"| `{setting.name}` | {default} | {accepted.replace('of at least', 'at least')} | {setting.help} |"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_described_as_it_is(setting: Setting) -> None:
    assert settings_row(setting) in built("docs/operations/settings.md").splitlines()


def test_page_of_settings_names_every_setting_once() -> None:
    subjects = section(read("docs/operations/settings.md"), "## Settings by subject")
    named = re.findall(r"`(\w+)`", " ".join(cells[1] for cells in rows(subjects)))
    assert len(named) == len(set(named))
    assert set(named) == {setting.name for setting in SETTINGS if not setting.name.startswith("max_")} | {"max_"}


# Errors


_ERRORS = {module.__name__ for module in (errors, errors, errors)}


def error_classes(root: type[errors.TopicsError] = errors.TopicsError) -> Iterator[type[errors.TopicsError]]:
    """The classes of the tree that have their own code."""
    if "code" in vars(root):
        yield root
    for child in root.__subclasses__():
        if child.__module__ in _ERRORS:
            yield from error_classes(child)


_PAGE = built("docs/errors.md")
_HTTP_ONLY = section(_PAGE, "## HTTP and WebSocket errors")


def error_rows() -> dict[str, list[str]]:
    """Code, status, class, detail, meaning and action of every error with a class."""
    return {cells[0].strip("`"): cells for cells in rows(_PAGE.split("## HTTP and WebSocket errors")[0])}


@pytest.mark.parametrize("error", list(error_classes()), ids=lambda error: error.code)
def test_every_error_is_described(error: type[errors.TopicsError]) -> None:
    cells = error_rows()[error.code]
    assert cells[2] == f"`{error.__name__}`"
    assert all(cells[3:])


def test_no_error_is_described_that_does_not_exist() -> None:
    assert error_rows().keys() == {error.code for error in error_classes()}


@pytest.mark.parametrize(
    "example",
    [
        errors.TopicNotFoundError("t"),
        errors.TopicNotEmptyError("t", 1),
        errors.TopicFullError("t", cap_records=1, cap_bytes=1, head_seq=1, earliest_seq=1),
        errors.ThrottledError.over_cap("max_topics", 1),
        errors.ThrottledError.under_pressure(1),
        errors.NotReadyError(0.5),
        errors.ReadOnlyError(0, "no room"),
        errors.CorruptSegmentError("t", 1, 2),
        errors.DamageError([Finding("a file", "a problem")]),
        errors.FolderBusyError("a folder", "somebody"),
    ],
    ids=lambda example: type(example).__name__,
)
def test_the_detail_of_an_error_is_described(example: errors.TopicsError) -> None:
    described = error_rows()[example.code][3]
    for key in example.detail:
        assert f"`{key}`" in described


def test_every_code_of_the_api_is_described_with_its_status() -> None:
    listed = {cells[0].strip("`"): cells[1] for cells in rows(_PAGE)}
    reported = {code: int(status) for code, status in listed.items() if status != "none"}
    assert reported == STATUS_BY_CODE | V1_STATUS_BY_CODE
    assert listed.keys() - reported.keys() == {"backup_target"}


def test_an_error_of_http_alone_has_a_meaning_and_an_action() -> None:
    assert all(all(cells) and len(cells) == 6 for cells in rows(_HTTP_ONLY))


def test_every_reason_of_a_loss_is_described() -> None:
    table = rows(section(read("docs/guarantees.md"), "## Loss and removal"))
    assert {cells[0] for cells in table} == {f"`{reason.value}`" for reason in LossReason}


# The command line and its output


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    promised = [squeezed(line) for line in (cli.__doc__ or "").splitlines() if re.match(r"\| \d", line)]
    assert promised
    page = [squeezed(line) for line in section(read("docs/operations/running.md"), "## Exit codes").splitlines()]
    assert [line for line in page if re.match(r"\| \d", line)] == promised


def test_every_command_is_described() -> None:
    commands = {name for name in cli.app if not name.startswith("-")}
    page = read("docs/cli.md")
    assert {name for name in commands if f"topics {name}" not in page} == set()


def test_no_command_is_described_that_does_not_exist() -> None:
    commands = set(cli.app)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"`topics ([a-z]\w*)", text))
        for block in blocks(text):
            named.update(re.findall(r"^topics ([a-z]\w*)", block, re.MULTILINE))
        assert named <= commands, name_of(page)


def log_events() -> set[str]:
    """Every event that the source logs as a warning or worse."""
    found: set[str] = set()
    for path in (ROOT / "src" / "topics").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        found.update(re.findall(r'\b_log(?:ger)?\.(?:warning|error|exception)\(\s*"([^"]+)"', source))
    return found


def test_every_warning_and_error_of_the_log_is_described() -> None:
    described = set(re.findall(r"`([^`]+)`", section(built("docs/operations/monitoring.md"), "## Logs")))
    assert log_events() - described == set()


def test_the_statistics_to_watch_exist() -> None:
    table = rows(section(read("docs/operations/monitoring.md"), "## Metrics to watch"))
    named = {name for cells in table for name in re.findall(r"`([\w\[\].]+)`", cells[0])}
    fields = {field.name for field in msgspec.structs.fields(EngineStats)}
    fields |= {field.name for field in msgspec.structs.fields(ShardStats)}
    fields |= {field.name for field in msgspec.structs.fields(ThrottleStats)}
    fields |= {f"cold_store.{field.name}" for field in msgspec.structs.fields(StoreStats)}
    assert named
    assert {name.removeprefix("shards[].") for name in named} <= fields
