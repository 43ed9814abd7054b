"""Upgrade: each folder of an earlier release opens, and every request gets the answer of that release.

| folder | written by |
|---|---|
| `earlier_folder` | a development version before checksums of small files and stored consumers |
| `folder_0_1_0` | version 0.1.0, which continued the first folder |

The first has topics of every durability class, deletes, caps, queues, routers, transactions, and
streams with schemas, forks and producers; in snapshots, in sealed segments (hot and cold), and in a log whose server
was killed. The boot id was removed, so every start treats the folder as one of another machine.
The second adds consumers, deletes by tag in segments, and streams in the log. `NAME.expected.json` has requests and
the answers of the release that wrote `NAME.tar.xz`. No file is ever generated again: a folder of a later release is
another pair of files, and is named under Versions of docs/formats.md.
"""

import json
import tarfile
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready

FOLDERS = ("earlier_folder", "folder_0_1_0")
RETRIES_MAX = 50
LIST = "/v0/topics?page_size=1000&streams=true"
"""Routers go on at the start, so the heads of their destinations may change until they are done."""
# Long enough that nothing in the folder expires, however old it is when the test runs.
CENTURY_MS = "3155760000000"
SETTINGS = {
    "cold_dir": "cold",
    "full_disk_reserve_bytes": "0",
    "hot_retain_segments": "1",
    "pipeline": "off",
    "pressure_commit_ms": "60000",
    "pressure_lag_ms": "60000",
    "segment_max_age_ms": "0",
    "segment_max_events": "12",
    "snapshot_inline_bytes": "2048",
    "snapshot_interval_ms": "3600000",
    "streams_metrics": "0",
    "transaction_retention_ms": CENTURY_MS,
    "transaction_timeout_ms": CENTURY_MS,
    "wal_file_bytes": "262144",
    "wal_shards": "2",
}
# Fields that differ between runs: durations, times of use, random ids.
VOLATILE = {
    "deadline",
    "effective_priority",
    "expires_ts",
    "last_read_ts",
    "lease_id",
    "performance",
    "took_ms",
}
SIZES = {
    "etag", "indexes_bytes", "pending_bytes", "pending_tail_bytes", "segment_cache_bytes", "segments_bytes",
    "total_bytes", "total_size_bytes", "wal_bytes", "wal_retained_bytes",
}  # fmt: skip
"""Fields of `_details` that later releases answer otherwise on purpose: the content of unsealed entries, without base64
and meta, and the bytes of the files of segments."""
MADE_LATER = "fresh-by-transaction"
SYSTEM_STREAMS = ("__registry__", "__stream_metrics__")
"""Later releases list them in /v1 on request only, and show the content type of topics that were used as a stream."""
HEADERS = {"cache-control", "content-type", "etag", "location"}


def tidied(value: Any, unlike: set[str]) -> Any:
    """The answer without the fields that differ between runs."""
    if isinstance(value, dict):
        unlike = unlike | {"content_type"} if "topic" in value else unlike
        unlike = unlike | {"committed_ms", "lag_ms", "losses"} if "consumer" in value else unlike
        if "leases_durable" in value:
            unlike = unlike | {"retain_for_consumers", "max_per_second", "max_leased", "fair_tags"}
            unlike = unlike | {"result_retention_ms"}
        # The message of an error is for people and may change; its code may not.
        unlike = unlike | {"message"} if "code" in value else unlike
        # Epochs of topics that the folder has are kept; those of later ones are times, and were numbers.
        unlike = unlike | {"epoch"} if value.get("topic") == MADE_LATER else unlike
        # Of a search's coverage only completeness is compared.
        reported = {name: {"complete": one["complete"]} if name == "coverage" else one for name, one in value.items()}
        return {name: tidied(one, unlike) for name, one in reported.items() if name not in unlike}
    if isinstance(value, list):
        listed = [one for one in value if not (isinstance(one, dict) and one.get("name") in SYSTEM_STREAMS)]
        return [tidied(one, unlike) for one in listed]
    return value


def changed(path: str) -> set[str]:
    """The fields of an answer that are not compared."""
    return SIZES if path.endswith("/_details") else set()


def ask(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request of the file and returns the answer in the form of the file."""
    content = request["body"].encode() if "body" in request else None
    unlike = VOLATILE.union(request.get("unlike", ()), changed(request["path"]))
    answer = client.request(request["method"], request["path"], content=content, headers=request.get("headers"))
    headers = {
        name: text
        for name, text in answer.headers.items()
        if (name in HEADERS or name.startswith(("stream-", "producer-"))) and name not in unlike
    }
    reported: dict[str, Any] = {"status": answer.status_code, "headers": dict(sorted(headers.items()))}
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    if is_json and answer.content and "format=raw" not in request["path"]:
        return reported | {"json": tidied(answer.json(), unlike)}
    return reported | {"bytes": answer.content.decode("latin-1")}


def name_of(request: dict[str, Any]) -> str:
    return f"{request['method']} {request['path']} {request.get('body', '')}"


def check(url: str, expected: list[dict[str, Any]]) -> None:
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        for one in expected:
            answer, expected_answer = (
                ask(client, one["request"]),
                tidied(one["answer"], changed(one["request"]["path"])),
            )
            for _ in range(RETRIES_MAX):
                if not is_partial(answer) and (answer == expected_answer or one["request"]["path"] != LIST):
                    break
                sleep(0.05)
                answer = ask(client, one["request"])
            assert answer == expected_answer, name_of(one["request"])


def is_partial(answer: dict[str, Any]) -> bool:
    """Whether a search ran out of its time limit, as it may on a busy machine; the index it has begun is kept."""
    body = answer.get("json")
    return isinstance(body, dict) and body.get("coverage", {}).get("complete") is False


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_of_an_earlier_release_reads_back_unchanged_and_accepts_writes(tmp_path: Path, name: str) -> None:
    beside = Path(__file__).parent
    with tarfile.open(beside / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads((beside / f"{name}.expected.json").read_text())
    with LiveServer(tmp_path, **SETTINGS) as live:
        check(live.url, expected["reads"])
        # The folder as this release rewrote it at the first start reads back the same.
        live.stop()
        live.start()
        wait_until_ready(live.url)
        check(live.url, expected["reads"])
        # Jobs, producers, an open transaction and seqs continue.
        check(live.url, expected["writes"])
        live.kill()
        live.start()
        wait_until_ready(live.url)
        check(live.url, expected["reads_after_writes"])
