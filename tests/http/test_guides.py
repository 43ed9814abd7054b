"""The guides of docs/guides are short, and everything that they show runs as written against a real server."""

from pathlib import Path

import pytest

from tests.http.guide_runner import Guide, fenced, file_name
from tests.http.live import LiveServer
from tests.unit.docs.pages import DOCS, name_of, read

GUIDES = sorted(page for page in (DOCS / "guides").glob("*.md") if page.name != "README.md")
# They need a browser and Spark: tests/browser/test_live_updates_guide.py and tests/spark/test_analytics_guide.py.
ELSEWHERE = {"live-updates.md", "analytics.md"}


@pytest.mark.parametrize("page", [page for page in GUIDES if page.name not in ELSEWHERE], ids=lambda page: page.stem)
def test_guide_runs_as_written(page: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with LiveServer(tmp_path / "server") as server, Guide(tmp_path, server.url) as guide:
        assert guide.follow(name_of(page)) > 0


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guide_is_under_200_lines_and_names_every_file_that_it_shows(page: Path) -> None:
    assert len(read(name_of(page)).splitlines()) < 200
    assert [block.code for block in fenced(name_of(page)) if block.language in ("python", "js", "ts", "html")
            and file_name(block) is None] == []  # fmt: skip
