"""The pages hold together: links lead somewhere, examples run, and every promise is proved by tests that exist."""

import ast
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.http.live import LiveServer
from tests.unit.docs.pages import DOCS, PAGES, ROOT, blocks, name_of, read, rows, section, without_blocks
from topics_client import Client

_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
_PROMISE = re.compile(r"^\*\*G(?P<number>\d+)\. (?P<text>.*?)(?=^\*\*G\d+\. |^## |\Z)", re.DOTALL | re.MULTILINE)

# Folders that only one machine has. A page that names one was written by looking at that machine.
_MACHINE_PATH = re.compile(r"(?<![\w.<}])/(?:home|root|work|tmp|Users|mnt|private)\b")


def promises() -> dict[int, str]:
    return {int(match["number"]): match["text"] for match in _PROMISE.finditer(read("docs/guarantees.md"))}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the common renderers make them."""
    titles = [match["title"] for match in _HEADING.finditer(without_blocks(page.read_text(encoding="utf-8")))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for match in _LINK.finditer(without_blocks(page.read_text(encoding="utf-8"))):
        if "://" in match["target"]:
            continue
        path, _, anchor = match["target"].partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(match["target"])
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_path_of_one_machine(page: Path) -> None:
    assert not _MACHINE_PATH.findall(page.read_text(encoding="utf-8"))


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / match["target"].partition("#")[0]).resolve()
            if target in PAGES:
                waiting.append(target)
    assert {name_of(page) for page in PAGES} == {name_of(page) for page in seen}


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    code, _ = blocks(read("README.md"), "python")
    script = tmp_path / "first.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["1 {'order': 1, 'total': 9.5}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.py", "orders-data"]


def test_the_embedded_example_of_the_readme_is_five_lines_and_imports_nothing_internal() -> None:
    code, _ = blocks(read("README.md"), "python")
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    assert re.findall(r"^(?:import|from) .*", code, re.MULTILINE) == ["import topics"]


@contextmanager
def readme_worker(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """The worker of the README in a process, as written except for the address and a shorter lease."""
    _, code = blocks(read("README.md"), "python")
    assert "10_000" in code
    script = folder / "worker.py"
    script.write_text(code.replace("Client()", f"Client({url!r})").replace("10_000", "1_000"), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def test_readme_worker_finishes_its_jobs_on_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with LiveServer(tmp_path / "server") as server, Client(server.url) as client:
        client.put_topic("jobs", {"type": "queue"})
        client.append("jobs", {"picture": "a.png", "seconds": 0.5})
        with readme_worker(tmp_path, server.url) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "started a.png\n"
            worker.send_signal(signal.SIGINT)
            assert worker.communicate(timeout=60) == ("finished a.png\n", "")
            assert worker.returncode == 0
        assert client.get_topic("jobs").count == 0


def test_readme_job_of_a_killed_worker_goes_to_another(tmp_path: Path) -> None:
    _, code = blocks(read("README.md"), "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    (tmp_path / "server").mkdir()
    with LiveServer(tmp_path / "server") as server, Client(server.url) as client:
        client.put_topic("jobs", {"type": "queue", "lease_ms": 1_000})
        client.append("jobs", {"picture": "a.png", "seconds": 60})
        for _ in range(2):
            with readme_worker(tmp_path, server.url) as worker:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "started a.png\n"
        assert client.get_topic("jobs").count == 1


def test_readme_has_at_most_150_lines() -> None:
    assert len(read("README.md").splitlines()) <= 150


def test_the_requests_of_the_readme_are_answered(tmp_path: Path) -> None:
    """Each `curl` is sent as it stands, only to another port."""
    [block] = blocks(read("README.md"), "sh")
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    assert [command[0] for command in commands] == ["curl", "curl"]
    with LiveServer(tmp_path) as server:
        answers = []
        for command in commands:
            options = dict(itertools.pairwise(command))
            name, _, value = options["-H"].partition(": ")
            url = options["-s"].replace("http://127.0.0.1:4000", server.url)
            request = urllib.request.Request(url, options["-d"].encode(), {name: value}, method="POST")
            with urllib.request.urlopen(request, timeout=60) as answer:
                answers.append(json.load(answer))
        server.stop()
    assert answers[0]["seqs"] == [1]
    [record] = answers[1]["records"]
    assert (record["data"], record["$tag"]) == ({"order": 1, "total": 9.5}, "order-1")


def test_every_target_that_is_named_exists() -> None:
    targets = re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)
    for page in PAGES:
        assert set(re.findall(r"`make ([\w-]+)", page.read_text(encoding="utf-8"))) <= set(targets), name_of(page)


# Promises


def test_every_promise_has_a_number_of_its_own() -> None:
    numbers = re.findall(r"^\*\*G(\d+)\.", read("docs/guarantees.md"), re.MULTILINE)
    assert len(set(numbers)) == len(numbers) == len(promises())


@cache
def cited_tests() -> dict[str, dict[str, list[str]]]:
    """The tests cited for each promise: functions by file, none for all tests of the file."""
    found: dict[str, dict[str, list[str]]] = tomllib.loads(read("tests/guarantees.toml"))
    return found


def test_only_promises_of_the_page_cite_tests() -> None:
    assert cited_tests().keys() <= {f"G{number}" for number in promises()}
    assert "`tests/" not in read("docs/guarantees.md"), "cite tests in tests/guarantees.toml, not in the page"


@pytest.mark.parametrize("number", list(promises()))
def test_a_promise_cites_tests_that_exist(number: int) -> None:
    cited = cited_tests().get(f"G{number}")
    assert cited, f"G{number} names no test that proves it: add it to tests/guarantees.toml"
    for file, tests in cited.items():
        path = ROOT / file
        assert path.is_file(), f"G{number} cites {file}, which does not exist"
        missing = set(tests) - functions(path)
        assert not missing, f"G{number} cites {sorted(missing)} of {file}"


@cache
def functions(path: Path) -> set[str]:
    """The functions of a file, including the methods of its classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_tests_cite_promises_that_exist() -> None:
    known = {f"G{number}" for number in promises()}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.parent != Path(__file__).parent:
            cited = set(re.findall(r"\bG\d+\b", path.read_text(encoding="utf-8")))
            assert cited <= known, path.relative_to(ROOT)


# Decisions


def test_the_decisions_are_listed_and_shaped_alike() -> None:
    index = read("docs/decisions/README.md")
    records = sorted(page for page in (DOCS / "decisions").glob("*.md") if page.name != "README.md")
    assert sorted(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index)) == [page.name for page in records]
    numbers = [page.name[:4] for page in records]
    assert len(set(numbers)) == len(numbers)
    for number, page in zip(numbers, records, strict=True):
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}: ")
        headings = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        assert headings == ["Status", "Context", "Decision", "Consequences", "Alternatives"], page.name


_RESULT = re.compile(r"\.\./(bench/results/\w+\.md)")


def test_every_figure_of_the_benchmark_page_is_in_the_report_that_its_row_names() -> None:
    checked = 0
    for cells in rows(read("docs/benchmarks.md")):
        reports = [read(name) for name in _RESULT.findall(cells[-1])]
        for figure in re.findall(r"\d[\d.,]*", " ".join(cells[1:-1])):
            if not cells[0].startswith(("`make", "`python")):
                assert any(figure in report for report in reports), (cells[0], figure)
                checked += 1
    assert checked > 60


def test_the_benchmark_page_names_every_report() -> None:
    named = set(_RESULT.findall(read("docs/benchmarks.md")))
    assert named == {f"bench/results/{page.name}" for page in (ROOT / "bench" / "results").glob("*.md")}


def test_changelog_is_one_short_release() -> None:
    from topics import __version__

    page = read("CHANGELOG.md")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == [__version__]
    text = section(page, f"## {__version__}")
    assert len(text.splitlines()) <= 80
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= {"Added", "Changed", "Fixed"}


def test_the_recipes_name_files_that_exist() -> None:
    named = re.findall(r"`((?:src|tests|docs)/[^`]+)`", read("CONTRIBUTING.md"))
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


# Tables, headings, indented blocks and pictures.
_NO_PROSE = ("|", "#", "    ", "![")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_of_prose_is_over_120_characters(page: Path) -> None:
    prose = without_blocks(page.read_text(encoding="utf-8")).splitlines()
    assert [line for line in prose if len(line) > 120 and not line.startswith(_NO_PROSE)] == []
