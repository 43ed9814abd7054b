"""Files of pages: their content, their forms, and conditional requests."""

import asyncio
import gzip
import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests.unit.http.fake_exchange import FakeExchange
from topics.console.site import Site, console_site, reference_site

STATIC = Path(str(files("topics.console"))) / "static"
EVERY = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())


def test_every_file_of_the_package_is_there_and_the_page_has_no_name() -> None:
    site = console_site()
    assert len(EVERY) > 30
    assert all((name if name != "index.html" else "") in site for name in EVERY)
    assert "index.html" not in site
    assert "../site.py" not in site


def test_a_file_is_read_once_and_only_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.js"
    site = Site({"a.js": path})
    path.write_bytes(b"first")
    assert FakeExchange().asked(site, "a.js").body == b"first"
    path.write_bytes(b"second")
    assert FakeExchange().asked(site, "a.js").body == b"first"


def test_each_form_has_a_tag_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.css"
    path.write_bytes(b"body { color: red }\n" * 100)
    site = Site({"a.css": path})
    plain, packed = FakeExchange().asked(site, "a.css"), FakeExchange({"accept-encoding": "gzip"}).asked(site, "a.css")
    assert gzip.decompress(packed.body) == plain.body == path.read_bytes()
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["etag"] != plain.headers["etag"]
    assert not plain.headers["etag"].startswith("W/")
    again = FakeExchange({"accept-encoding": "gzip"}).asked(Site({"a.css": path}), "a.css")
    assert again.headers["etag"] == packed.headers["etag"], "a restart makes the same bytes"


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_whoever_has_it_is_notified_so(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.js"
    path.write_bytes(b"x")
    site = Site({"a.js": path})
    tag = FakeExchange().asked(site, "a.js").headers["etag"]
    known = FakeExchange({"if-none-match": form.format(tag)}).asked(site, "a.js")
    assert (known.status, known.body, known.headers["etag"]) == (304, b"", tag)
    assert FakeExchange({"if-none-match": '"other"'}).asked(site, "a.js").status == 200


@pytest.mark.parametrize("name", EVERY)
def test_no_file_loads_anything_from_elsewhere_or_makes_markup_of_text(name: str) -> None:
    text = (STATIC / name).read_text()
    addresses = [word for word in ("http://", "https://") if word in text.replace("http://www.w3.org/2000/svg", "")]
    assert addresses == []
    ways = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "style=")
    for way in ways:
        assert way not in text, f"{name} has {way}"
    assert not name.endswith(".html") or "<script>" not in text


@pytest.mark.parametrize("name", [name for name in EVERY if name.endswith(".js")])
def test_modules_stay_small_and_their_imports_lead_somewhere(name: str) -> None:
    text = (STATIC / name).read_text()
    assert text.startswith("// "), "a module says what it is for"
    assert len(text.splitlines()) <= 300
    for target in re.findall(r"""(?:from|import\() ?["'](\.[^"']+)["']""", text):
        assert ((STATIC / name).parent / target).resolve().is_file(), target


def test_a_long_file_is_compressed_by_a_thread_once_for_all_who_ask(tmp_path: Path) -> None:
    path = tmp_path / "long.js"
    path.write_bytes(b"let x = 1;\n" * 50_000)
    site = Site({"long.js": path})
    asking = [FakeExchange({"accept-encoding": "gzip"}) for _ in range(3)]

    async def ask() -> None:
        for exchange in asking:
            exchange.asked(site, "long.js")
        assert [exchange.status for exchange in asking] == [0, 0, 0], "nobody is answered on the loop's own time"
        asking[1].gone = True
        while not asking[2].status:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(ask(), 30))
    assert [exchange.status for exchange in asking] == [200, 0, 200]
    assert gzip.decompress(asking[0].body) == path.read_bytes()
    assert FakeExchange().asked(site, "long.js").status == 200


def test_without_the_package_of_its_files_there_is_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.console.site.find_spec", lambda name: None)
    assert reference_site() is None
