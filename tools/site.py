"""The documentation site: facts for `mkdocs.yml` about pages that are written to be read in the repository.

The pages of docs/ are the site's pages, README.md is its first one, and the other pages of the root come beside it.
Links lead from file to file of the repository, so each is turned into one from page to page of the site. A file that is
not a page, such as an example of deploy/, is there as it is; a folder, or a file of the code, has no place there and is
only named.

`make docs` loads this file as a hook of mkdocs. `tools/site_reference.py` generates tables from the code.
"""

import posixpath
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tools.site_reference import with_tables

ROOT = Path(__file__).parents[1]
_FRONT = "README.md"
_LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|``.+?``|`[^`\n]+`", re.DOTALL | re.MULTILINE)
# A list right below a line of its paragraph: the site's Markdown wants an empty line between them.
_LIST = re.compile(r"^(?P<line>(?![-*] |[|\s]|\d+\. ).+)\n(?=- )", re.MULTILINE)
_CODE_FOLDERS = ("src/", "tests/", "bench/", "tools/")


def slug(title: str, separator: str = "-") -> str:
    """The anchor of a heading, as the repository's own pages are linked to."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def uri_of(path: str) -> str | None:
    """The address of a repository file in the site; None for files outside it."""
    if path == _FRONT:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return None if path.startswith(_CODE_FOLDERS) or not (ROOT / path).is_file() else path


def path_of(uri: str) -> str:
    """The file of the repository that a page of the site is."""
    if uri == "index.md":
        return _FRONT
    return uri if "/" not in uri and (ROOT / uri).is_file() else f"docs/{uri}"


def turned(markdown: str, path: str) -> str:
    """A page of the repository with links that work in the site. Code is unchanged."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    def turn(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        place, mark, anchor = target.partition("#")
        if not place or "://" in place or place.startswith("mailto:"):
            return match[0]
        uri = uri_of(posixpath.normpath(posixpath.join(posixpath.dirname(path), place)))
        if uri is None:
            return text[1:-1]
        here = posixpath.dirname(uri_of(path) or path)
        return f"{text}({posixpath.relpath(uri, here or '.')}{mark}{anchor})"

    # A heading of a link may be code, so code comes back behind the links.
    linked = _LIST.sub(r"\g<line>\n\n", _LINK.sub(turn, _CODE.sub(keep, markdown)))
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], linked)


@cache
def beside() -> dict[str, str]:
    """The files of the site outside docs/, by their place in the site."""
    found = {uri_of(page.name) or page.name: page.name for page in ROOT.glob("*.md")}
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        path = page.relative_to(ROOT).as_posix()
        for match in _LINK.finditer(_CODE.sub("", page.read_text(encoding="utf-8"))):
            place = match["target"].partition("#")[0]
            if place and "://" not in place:
                target = posixpath.normpath(posixpath.join(posixpath.dirname(path), place))
                uri = uri_of(target)
                if uri is not None and not target.startswith("docs/"):
                    found[uri] = target
    return found


def with_decisions(nav: list[Any]) -> list[Any]:
    """The contents, where the page that lists the decisions is followed by each of them."""
    each = sorted(page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs/decisions").glob("0*.md"))
    found: list[Any] = []
    for entry in nav:
        [(title, below)] = entry.items()
        if isinstance(below, list):
            below = with_decisions(below)
        elif below == "decisions/README.md":
            below = [below, *each]
        found.append({title: below})
    return found


def with_proofs(markdown: str) -> str:
    """The page of guarantees with a table of the tests that prove each promise."""
    cited = tomllib.loads((ROOT / "tests/guarantees.toml").read_text(encoding="utf-8"))
    table = ["## Tests of each promise", "", "| promise | tests |", "|---|---|"]
    for number, tests in cited.items():
        names = [f"`{file}`" + "".join(f"<br>`{test}`" for test in sorted(tests[file])) for file in tests]
        table.append(f"| {number} | {'<br>'.join(names)} |")
    return "\n".join([markdown, *table, ""])


# The hook that mkdocs calls.


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.nav = with_decisions(config.nav)
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # noqa: PLC0415 - only `make docs` has it

    for uri, path in beside().items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    path = path_of(page.file.src_uri)
    markdown = with_tables(with_proofs(markdown) if path == "docs/guarantees.md" else markdown)
    return turned(markdown, path)
