"""A stream that is indexed wherever the jobs of the pipeline run."""

from pathlib import Path

import httpx

from tests.spark.waiting_for import sealed_to, wait_until
from topics.log.layout import Layout
from topics.log.posix import PosixFileSystem
from topics.model.seq_ranges import covers
from topics.search.file_index.manifest import IndexStore
from topics.search.file_index.reader import IndexFile

_SEARCH = {
    "primaryTimestampField": "time",
    "fields": {
        "time": {"kind": "date", "column": True, "bindings": [{"version": 1, "jsonPointer": "/time"}]},
        "n": {"kind": "integer", "exact": True, "column": True, "bindings": [{"version": 1, "jsonPointer": "/n"}]},
    },
}


def fill_indexed(url: str, data: Path) -> None:
    """A stream `searched` of 100 sealed entries."""
    path = f"{url}/v1/stream/searched"
    assert httpx.put(path, headers={"content-type": "application/json"}).status_code == 201
    described = httpx.post(f"{path}/_schema", json={"schema": {"type": "object"}, "search": _SEARCH})
    assert described.status_code == 200, described.text
    for first in (0, 50):
        entries = [{"n": n, "time": n} for n in range(first, first + 50)]
        assert httpx.post(path, json=entries).status_code == 204
    wait_until(lambda: sealed_to(data, "searched") == 100, "the stream is sealed")


def check_indexed(url: str, data: Path) -> None:
    """It has companions that are whole, and a search asks them."""
    store = IndexStore(PosixFileSystem(), Layout(str(data)))
    manifests = [store.load(topic_id) for topic_id in store.topic_ids()]
    [manifest] = [one for one in manifests if one is not None and one.topic == "searched"]
    assert covers(manifest.covered(manifest.generation), 1, 100)
    for file in manifest.files:
        IndexFile(store.map(manifest.topic_id, file.name)).check()
    answer = httpx.post(f"{url}/v1/stream/searched/_search", json={"q": "n:>=98", "sort": ["time:asc"]}).json()
    assert [hit["source"]["n"] for hit in answer["hits"]] == [98, 99]
