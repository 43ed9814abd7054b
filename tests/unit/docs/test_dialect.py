"""Plain English: no heading, docstring, comment, error, log event, help or page uses the phrases of the old dialect.

The patterns are heuristics. Rewrite a sentence that they find.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.unit.docs.pages import PAGES, ROOT, name_of, without_blocks
from tools.site_reference import commands, every_metric
from topics.api.operator_routes import OpsHandlers
from topics.model.settings import SETTINGS, Settings
from topics.server import stream_routes
from topics.system.clock import SystemClock

# A sentence whose subject is not named.
_BEGINNING = re.compile(r"(?:^|[.;!?] |\n\n)(?P<phrase>What|Who|Whoever|Those|One that)\b")
_PHRASE = re.compile(
    r"\b(?P<phrase>(?<!there )(?:is|are) no (?!longer|more than|limit\b)\w+|makes? no sense|of (?:its|their) own|"
    r"tells?|says?|whoever|nothing to do about it|as it should be)\b",
    re.IGNORECASE,
)
# Code and quotations are not sentences of ours.
_CODE = re.compile(r"``.+?``|`[^`]*`|\"[^\"]*\"|https?://\S+|<!--.*?-->", re.DOTALL)


class Text(NamedTuple):
    place: str
    text: str


def findings(texts: Iterator[Text]) -> list[str]:
    """The phrases of the dialect in texts, each with its place."""
    found = []
    for place, text in texts:
        plain = _CODE.sub("`", text)
        for pattern in (_BEGINNING, _PHRASE):
            found += [f"{place}: {match['phrase']}" for match in pattern.finditer(plain)]
    return found


def sources(folder: str) -> list[Path]:
    """The modules below a folder, without the generated client."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "_sync" not in path.parts]


def docstrings(path: Path) -> Iterator[Text]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text(f"{name_of(path)}:{node.lineno}", " ".join(node.value.value.split()))


def comments(path: Path) -> Iterator[Text]:
    """The comments of a module; comments on lines that follow each other are one text."""
    lines: list[str] = []
    end = 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != end + 1:
                yield Text(f"{name_of(path)}:{end}", " ".join(lines))
                lines = []
            lines.append(token.string.lstrip("# "))
            end = token.start[0]
    yield Text(f"{name_of(path)}:{end}", " ".join(lines))


def configured(path: Path) -> Iterator[Text]:
    """The comments of a file that is not Python: of lines that follow each other, and the helps of targets."""
    text = path.read_text(encoding="utf-8")
    for block in re.findall(r"(?:^[ \t]*# .*\n?)+", text, re.MULTILINE):
        yield Text(name_of(path), " ".join(line.strip("# \t") for line in block.splitlines()))
    for target_help in re.findall(r"^[\w-]+:.*?## (.+)$", text, re.MULTILINE):
        yield Text(name_of(path), target_help)


def messages(path: Path) -> Iterator[Text]:
    """The texts of errors that a module raises, and its log events."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        is_log = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("_log", "_logger", "log", "logger")
        )
        if is_log or isinstance(node, ast.Raise):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
                    yield Text(f"{name_of(path)}:{part.lineno}", part.value)


def package_of(path: Path) -> str:
    """The package of a module below src, such as `topics/log`."""
    parts = path.relative_to(ROOT / "src").parts
    return "/".join(parts[:2]) if parts[0] == "topics" and len(parts) > 2 else parts[0]


PACKAGES = sorted({package_of(path) for path in sources("src")})


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_of_a_package_are_plain(package: str) -> None:
    paths = [path for path in sources("src") if package_of(path) == package]
    found = findings(chain.from_iterable(map(docstrings, paths)))
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_comments_of_a_package_are_plain(package: str) -> None:
    paths = [path for path in sources("src") if package_of(path) == package]
    found = findings(chain.from_iterable(map(comments, paths)))
    assert found == []


@pytest.mark.parametrize("folder", ["bench", "tests", "tools"])
def test_docstrings_and_comments_of_a_folder_are_plain(folder: str) -> None:
    paths = [path for path in sources(folder) if path != Path(__file__)]
    in_docstrings = findings(chain.from_iterable(map(docstrings, paths)))
    in_comments = findings(chain.from_iterable(map(comments, paths)))
    assert in_docstrings == []
    assert in_comments == []


_CONFIGURED = [
    path
    for folder in ("deploy", "requirements")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix != ".json"
]


@pytest.mark.parametrize("path", [ROOT / "Makefile", *_CONFIGURED], ids=name_of)
def test_comments_and_targets_of_a_file_are_plain(path: Path) -> None:
    assert findings(configured(path)) == []


def test_helps_of_targets_are_imperatives() -> None:
    helps = re.findall(r"^[\w-]+:.*?## (\w+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(helps) > 30
    assert [word for word in helps if word.endswith("s")] == []


def test_errors_and_log_events_are_plain() -> None:
    assert findings(chain.from_iterable(map(messages, sources("src")))) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_is_plain(page: Path) -> None:
    text = without_blocks(page.read_text(encoding="utf-8"))
    headings = "\n\n".join(re.findall(r"^#+ .+$", text, re.MULTILINE))
    is_decision = page.parent.name == "decisions"
    assert findings(iter([Text(name_of(page), headings if is_decision else text)])) == []
    assert [line for line in headings.splitlines() if re.match(r"#+ (What|Who|Whoever|Those|One that)\b", line)] == []


def described(document: Any) -> Iterator[str]:
    """Every summary and description of a JSON document."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name in ("description", "summary") and isinstance(value, str):
                yield value
            else:
                yield from described(value)
    elif isinstance(document, list):
        for value in document:
            yield from described(value)


def test_help_of_settings_metrics_commands_and_openapi_is_plain() -> None:
    handlers = OpsHandlers(SystemClock(), stream_routes(Settings()))
    handlers.routes()
    helps = re.findall(r"^# HELP (.+)$", every_metric().text().decode(), re.MULTILINE)
    texts = {
        "setting": [setting.help for setting in SETTINGS],
        "metric": helps,
        "command": list(commands()),
        "openapi": list(described(msgspec.json.decode(handlers.description))),
    }
    assert all(texts.values())
    assert findings(Text(kind, text) for kind, some in texts.items() for text in some) == []
