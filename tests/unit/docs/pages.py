"""Reading the project's pages: where they are, their tables and their fenced blocks."""

import re
from pathlib import Path

from tools.site_reference import with_tables

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

API_PAGES = (
    "README", "authentication", "topics", "records", "reading", "consumers", "transactions", "routers", "queues",
    "schedules", "watch", "websocket", "admin", "metrics",
)  # fmt: skip

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    """The page as a person would call it, for the name of a test."""
    return page.relative_to(ROOT).as_posix()


def read(name: str) -> str:
    """The text of a page, named from the root of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def folder(name: str, *pages: str) -> str:
    """The text of several pages of a folder of docs/, in the order they are named."""
    return "\n".join(read(f"docs/{name}/{page}.md") for page in pages)


def api_pages() -> str:
    """The pages of the HTTP API with their generated tables."""
    return with_tables(folder("api", *API_PAGES))


def stream_pages() -> str:
    return folder(
        "streams", "README", "append", "read", "schemas", "profiles", "touches", "inspection", "subscriptions"
    )


def blocks(text: str, language: str = "") -> list[str]:
    """The fenced blocks of a language; the empty one is that of blocks which name none."""
    return [match["code"] for match in _FENCE.finditer(text) if match["language"] == language]


def without_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def rows(text: str) -> list[list[str]]:
    """The cells of every table row in a text, heads and rules left out."""
    lines = text.splitlines()
    found = []
    for place, line in enumerate(lines):
        rule_next = place + 1 < len(lines) and set(lines[place + 1]) <= set("|-: ") and "-" in lines[place + 1]
        if line.startswith("|") and not set(line) <= set("|-: ") and not rule_next:
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def section(text: str, heading: str) -> str:
    """Returns the text below a heading, up to the next one of its rank or a higher one."""
    level = heading.index(" ")
    rest = text.split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def squeezed(line: str) -> str:
    """A line without its indentation and with one space for many, so that layout does not matter."""
    return " ".join(line.split())
