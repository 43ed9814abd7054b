"""Records in the console that are more than a line of JSON: bytes, columns, exports, and text that deceives."""

import csv
import io
import json
import re
import struct
import zlib
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import keep, visit
from tests.browser.sample import HOSTILE, append
from tests.browser.test_console_access import findings
from tests.http.live import LiveServer


def png(width: int = 4, height: int = 4) -> bytes:
    """A red square."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\0\0" * width) * height
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.pwned=5"><script>window.pwned=6</script></svg>'


def put_bytes(api: httpx.Client, name: str, content_type: str, *entries: bytes) -> None:
    api.put(f"/v1/stream/{name}", headers={"content-type": content_type}).raise_for_status()
    for entry in entries:
        api.post(f"/v1/stream/{name}", headers={"content-type": content_type}, content=entry).raise_for_status()


def exported(page: Page, kind: str, most: str = "10,000") -> str:
    """The file that an export gives."""
    page.get_by_role("button", name="Export").click()
    page.get_by_label("Format").select_option(kind)
    page.get_by_label("Maximum number of records").select_option(most.replace(",", ""))
    with page.expect_download() as download:
        page.locator("dialog").get_by_role("button", name="Export").click()
    expect(page.locator("dialog")).to_have_count(0)
    return Path(download.value.path()).read_bytes().decode()


def test_an_image_has_a_preview_its_bytes_and_a_download(browser: Browser, sampled: LiveServer) -> None:
    picture = png()
    with httpx.Client(base_url=sampled.url) as api:
        put_bytes(api, "pictures", "image/png", picture, b"no image at all")
    with visit(browser, f"{sampled.url}/console#/topic/pictures/live?seq=1") as page:
        expect(page.locator(".record .line").first).to_have_text(f"image/png, {len(picture)} B")
        expect(page.locator(".detail")).to_contain_text("image/png")
        image = page.locator(".detail img.preview")
        expect(image).to_be_visible()
        assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 4
        expect(page.get_by_role("region", name="Hex of the entry")).to_contain_text("000000  89 50 4e 47 0d 0a 1a 0a")
        with page.expect_download() as download:
            page.get_by_role("button", name="Download").click()
        assert Path(download.value.path()).read_bytes() == picture
        assert download.value.suggested_filename == "pictures-1.png"
        keep(page, "binary")
        page.locator(".tail").press("ArrowDown")
        expect(page.locator(".detail h2")).to_have_text("Record 2")
        # Its content type is an image type, its bytes are not an image.
        expect(page.locator(".detail img")).to_have_count(0)


@pytest.mark.parametrize("content_type", ["image/svg+xml", "image/png", "text/html"])
def test_a_document_is_never_more_than_text(browser: Browser, sampled: LiveServer, content_type: str) -> None:
    name = re.sub(r"\W", "-", f"doc-{content_type}")
    with httpx.Client(base_url=sampled.url) as api:
        put_bytes(api, name, content_type, SVG)
    with visit(browser, f"{sampled.url}/console#/topic/{name}/live?seq=1") as page:
        expect(page.get_by_role("region", name="Hex of the entry")).to_be_visible()
        assert page.locator(".detail img, .detail object, .detail iframe, .detail script").count() == 0
        if content_type == "text/html":
            expect(page.get_by_role("region", name="Text of the entry")).to_contain_text("<script>")
        with page.expect_download() as download:
            page.get_by_role("button", name="Download").click()
        assert download.value.suggested_filename == f"{name}-1.bin"
        assert page.evaluate("window.pwned") is None


def test_characters_that_hide_or_reorder_text_are_escapes(browser: Browser, sampled: LiveServer) -> None:
    trick = "gpj.\u202eexe\u2066\u200f\u061c"
    shown = r"gpj.\u202eexe\u2066\u200f\u061c"
    with httpx.Client(base_url=sampled.url) as api:
        append(api, "bidi", [{"data": {trick: trick}, "tag": trick, "node": trick, "meta": {"m": trick}}])
    with visit(browser, f"{sampled.url}/console#/topic/bidi/live?seq=1") as page:
        expect(page.locator(".record .line")).to_contain_text(shown)
        expect(page.locator(".detail")).to_contain_text(shown)
        inside = page.evaluate("document.documentElement.outerHTML")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]", inside)
        # An address may hold anything.
        page.goto(f"{sampled.url}/console#/topic/{quote(trick)}")
        expect(page.get_by_role("heading", level=1)).to_have_text(shown)
        assert "\u202e" not in page.title()


def test_chosen_fields_are_columns_and_remembered(browser: Browser, sampled: LiveServer) -> None:
    with httpx.Client(base_url=sampled.url) as api:
        rows = [{"data": {"id": n, "user": {"name": f"ada{n}", HOSTILE: n}, "big": 1}} for n in range(1, 4)]
        append(api, "wide", rows)
    with visit(browser, f"{sampled.url}/console#/topic/wide", bypass_csp=True) as page:
        expect(page.locator(".record")).to_have_count(3)
        page.get_by_role("button", name="Columns").click()
        keep(page, "columns-dialog")
        page.get_by_label("user.name").check()
        page.get_by_label("id", exact=True).check()
        page.get_by_role("button", name="Show columns").click()
        expect(page.locator(".columns-head")).to_contain_text("user.name")
        expect(page.locator(".record").last.locator(".cell")).to_have_text(["3", "ada3"])
        assert findings(page) == []
        page.reload()
        expect(page.locator(".record").last.locator(".cell")).to_have_text(["3", "ada3"])
        keep(page, "columns")
        found = list(csv.reader(io.StringIO(exported(page, "csv"))))
        assert found[0] == ["seq", "time", "tag", "node", "id", "user.name"]
        assert [row[4:] for row in found[1:]] == [[str(n), f"ada{n}"] for n in range(1, 4)]
        page.get_by_role("button", name="Columns").click()
        page.get_by_role("button", name="Show whole records").click()
        expect(page.locator(".record").last).to_contain_text('"big":1')
        assert page.evaluate("localStorage.getItem('topics-console-columns')") == "[]"


FORMULAS = ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "-5", "ok", 'a"b', "two\nlines"]


def test_an_export_has_every_record_and_no_formula(browser: Browser, sampled: LiveServer) -> None:
    with httpx.Client(base_url=sampled.url) as api:
        append(api, "sheet", [{"data": one, "tag": one.strip() or "x"} for one in FORMULAS])
        append(api, "numbers", [{"data": 0}] * 1200)
        api.post(
            "/v0/topics/numbers", headers={"content-type": "application/json"},
            content='{"records":[{"data":12345678901234567890}]}',
        ).raise_for_status()  # fmt: skip
    with visit(browser, f"{sampled.url}/console#/topic/sheet") as page:
        expect(page.locator(".record").first).to_be_visible()
        rows = list(csv.reader(io.StringIO(exported(page, "csv"), newline="")))
        cells = [row[4] for row in rows[1:]]
        assert cells == [
            "'=1+1",
            "'+cmd",
            "'-2+3",
            "'@SUM(A1)",
            "'\t=1",
            "'\r=1",
            "' =1",
            "-5",
            "ok",
            'a"b',
            "two\nlines",
        ]
        lines = [json.loads(line) for line in exported(page, "ndjson").splitlines()]
        assert [line["data"] for line in lines] == FORMULAS
        page.goto(f"{sampled.url}/console#/topic/numbers")
        expect(page.get_by_text("head 1,201")).to_be_visible()
        last = exported(page, "ndjson").splitlines()
        assert len(last) == 1201 and '"data":12345678901234567890' in last[-1]
        assert len(exported(page, "ndjson", "1,000").splitlines()) == 1000
        expect(page.locator("#toasts")).to_contain_text("Exported 1,000 records, the maximum of 1,000.")


def test_hits_are_exported_with_their_fields(browser: Browser, sampled: LiveServer) -> None:
    with visit(browser, f"{sampled.url}/console#/search/weblog?q=card") as page:
        expect(page.locator(".hit").first).to_be_visible()
        rows = list(csv.reader(io.StringIO(exported(page, "csv"))))
        assert rows[0] == ["seq", "time", "service", "status", "message"]
        assert len(rows) == 41
        entries = [json.loads(line) for line in exported(page, "ndjson").splitlines()]
        assert {entry["entry"]["message"] for entry in entries} == {"card declined", "paid by card"}


def test_facets_count_all_hits(browser: Browser, sampled: LiveServer) -> None:
    with httpx.Client(base_url=sampled.url) as api:
        fields = {
            "level": {"kind": "keyword", "exact": True},
            "time": {"kind": "date", "column": True, "sortable": True},
        }
        search = {
            "primaryTimestampField": "time",
            "fields": {
                name: {**one, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}]} for name, one in fields.items()
            },
        }
        api.put("/v1/stream/levels", headers={"content-type": "application/json"}).raise_for_status()
        api.post("/v1/stream/levels/_schema", json={"schema": {"type": "object"}, "search": search}).raise_for_status()
        entries = [{"time": "2026-03-25T10:00:00Z", "level": "rare" if n < 7 else "usual"} for n in range(700)]
        api.post("/v1/stream/levels", json=entries).raise_for_status()
    with visit(browser, f"{sampled.url}/console#/search/levels?sort=offset%3Adesc") as page:
        facets = page.locator(".facets")
        expect(facets).to_contain_text("Of all 700 hits")
        # The oldest hits are behind the first page, and count.
        expect(facets.get_by_role("button", name=re.compile("^rare"))).to_have_text(re.compile("rare\\s*7"))
        expect(facets.get_by_role("button", name=re.compile("^usual"))).to_have_text(re.compile("usual\\s*693"))
