"""Each term of the field that topics implements is in a heading of the docs and in the docstring of its module."""

import ast
import re

import pytest

from tests.unit.docs.pages import PAGES, ROOT, name_of, without_blocks

# The module that implements each term. topics implements all terms of the field but replicas that serve reads.
MODULE_BY_TERM = {
    "WAL": "topics.log.wal",
    "group commit": "topics.log.group_commit",
    "checkpoint": "topics.engine.checkpoint",
    "segment": "topics.log.segment",
    "snapshot": "topics.log.snapshot_files",
    "cursor": "topics.engine.read",
    "lag": "topics.engine.read",
    "offset": "topics.streams.stream_state",
    "consumer": "topics.streams.subscriptions.subscriptions",
    "lease": "topics.queues.leases",
    "visibility timeout": "topics.queues.leases",
    "at least once": "topics.queues.queues",
    "dead-letter queue": "topics.queues.dead_letters",
    "exactly once": "topics.routers.forwarding",
    "idempotent": "topics.engine.idempotency",
    "backpressure": "topics.engine.backpressure",
    "batching": "topics.api.request_batching",
    "pipelining": "topics.api.request_batching",
    "retention": "topics.engine.retention",
    "eviction": "topics.engine.retention",
    "compaction": "topics.spark.archive.archive_plan",
    "inverted index": "topics.search.file_index.zone_maps",
    "posting list": "topics.search.file_index.zone_maps",
    "zone map": "topics.search.file_index.zone_maps",
    "top-k": "topics.search.file_index.top_k",
    "cache": "topics.search.service.index_file_cache",
    "read-your-writes": "topics.search.service.index_feed",
    "failover": "topics.ops.failover",
}


def contains(text: str, term: str) -> bool:
    """Whether a text has the term, in any case, with blanks or hyphens."""
    pattern = r"[-\s]+".join(map(re.escape, re.split(r"[-\s]+", term)))
    return re.search(rf"\b{pattern}", text, re.IGNORECASE) is not None


def headings() -> str:
    pages = [page for page in PAGES if "/decisions/" not in name_of(page)]
    texts = [without_blocks(page.read_text(encoding="utf-8")) for page in pages]
    return "\n".join(heading for text in texts for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))


@pytest.mark.parametrize("term", MODULE_BY_TERM)
def test_term_is_in_a_heading_of_the_docs(term: str) -> None:
    assert contains(headings(), term)


@pytest.mark.parametrize("term", MODULE_BY_TERM)
def test_term_is_in_the_docstring_of_its_module(term: str) -> None:
    path = ROOT / "src" / MODULE_BY_TERM[term].replace(".", "/")
    source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    assert contains(ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "", term)
