"""A server on a block device that fails: a read that meets the bad sectors receives the lost range, and other requests
are unaffected.

The device is a loop device whose backing file is cut behind the server's back: the kernel then answers EIO, as it does
for a sector that a disk cannot read. Needs root and loop devices; skipped elsewhere.
"""

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready

FIBMAP, BLOCK_BYTES = 1, 4096
RECORDS, RECORD_BYTES = 400, 4000
SETTINGS = {
    "pipeline": "off",
    "segment_max_age_ms": "0",
    "segment_max_events": "200",
    "snapshot_interval_ms": "3600000",
    "snapshot_inline_bytes": "0",
    "streams_metrics": "0",
}


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A file system on a loop device, mounted where the server keeps its segments; its image can be cut."""
    if os.geteuid() != 0:
        pytest.skip("mounting a loop device needs root")
    image, mount = tmp_path / "image", tmp_path / "data" / "topics"
    mount.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(64 << 20)
    with contextlib.ExitStack() as ended:
        try:
            run("mkfs.ext4", "-q", "-b", str(BLOCK_BYTES), "-O", "^has_journal", str(image))
            loop = run("losetup", "--find", "--show", str(image))
            ended.callback(run, "losetup", "--detach", loop)
            run("mount", loop, str(mount))
            ended.callback(run, "umount", "--lazy", str(mount))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"there are no loop devices here: {getattr(error, 'stderr', error)}")
        (mount / "lost+found").rmdir()
        yield image


def first_block(path: Path, index: int) -> int:
    """The block of the device that holds a block of a file."""
    with path.open("rb") as file:
        found: bytes = fcntl.ioctl(file, FIBMAP, pack("i", index))
    return int(unpack("i", found)[0])


def forget_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def append(client: httpx.Client, topic: str) -> None:
    for first in range(0, RECORDS, 100):
        records = [{"data": {"n": first + n, "x": "y" * RECORD_BYTES}} for n in range(100)]
        assert client.post(f"/v0/topics/{topic}", json={"records": records, "create": True}).is_success


def read_all(client: httpx.Client, topic: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The numbers of the records that are served, and the ranges that are reported as corrupt."""
    served: list[int] = []
    lost: list[tuple[int, int]] = []
    cursor = 0
    while cursor < RECORDS:
        answer = client.post(f"/v0/topics/{topic}/diff", json={"from_seq": cursor, "limit": 50})
        if answer.is_success:
            served += [record["data"]["n"] for record in answer.json()["records"]]
            cursor = answer.json()["next_from_seq"]
        else:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (500, "corrupt_segment"), error
            lost.append((error["detail"]["from_seq"], error["detail"]["to_seq"]))
            assert lost[-1][1] > cursor
            cursor = lost[-1][1]
    return served, lost


def test_server_lives_and_tells_the_range_of_unreadable_sectors(tmp_path: Path, device: Path) -> None:
    with LiveServer(tmp_path, **SETTINGS) as live:
        with httpx.Client(base_url=live.url, trust_env=False, timeout=30) as client:
            append(client, "bad")
            append(client, "good")
        live.stop()
        live.start()
        wait_until_ready(live.url)
        with httpx.Client(base_url=live.url, trust_env=False, timeout=30) as client:
            # Now that both are open, their heads and indexes are in memory.
            for name in ("bad", "good"):
                assert read_all(client, name) == (list(range(RECORDS)), [])
            files = sorted((tmp_path / "data" / "topics").glob("*/*.data"))
            assert len(files) >= 2
            # The file that lies furthest behind on the device, cut in its middle.
            last = max(files, key=lambda path: first_block(path, 0))
            # The header of a segment has the name of its topic.
            topic, other = ("good", "bad") if b"good" in last.read_bytes()[:100] else ("bad", "good")
            cut = first_block(last, last.stat().st_size // BLOCK_BYTES // 2)
            os.truncate(device, cut * BLOCK_BYTES)
            for path in files:
                forget_pages(path)
            for _ in range(4):
                served, lost = read_all(client, topic)
                assert lost
                missing = {seq for first, to in lost for seq in range(first, to + 1)}
                assert served == [n for n in range(RECORDS) if n + 1 not in missing]
                assert len(missing) < RECORDS // 2
                assert client.post("/v0/topics/new", json={"records": [{"data": 1}], "create": True}).is_success
            assert read_all(client, other)[0] == list(range(RECORDS))
            assert client.get("/readyz").is_success
