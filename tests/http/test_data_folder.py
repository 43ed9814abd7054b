"""A data folder that vanishes under a running server, and a folder that no server can start on."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.http.live import LiveServer, wait_until_ready

PATIENCE_S = 30.0


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def empty(folder: Path) -> None:
    """As `rm -rf data/*` does, which leaves the lock."""
    for path in folder.iterdir():
        if not path.name.startswith("."):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def move(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replace(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    move(folder)
    folder.with_name("copy").rename(folder)


@pytest.mark.parametrize("vanish", [remove, empty, move, replace])
def test_server_whose_data_folder_vanished_says_so_and_takes_no_writes(
    tmp_path: Path, vanish: Callable[[Path], None]
) -> None:
    with LiveServer(tmp_path, pipeline="off") as live:
        with httpx.Client(base_url=live.url, trust_env=False, timeout=30) as client:
            body = {"records": [{"data": 1}], "create": True}
            assert client.post("/v0/topics/orders", json=body).is_success
            ready = client.get("/v0/ready")
            assert ready.status_code == 200 and ready.json()["status"] == "ready"
            vanish(tmp_path / "data")
            give_up = time.monotonic() + PATIENCE_S
            while client.get("/v0/ready").json()["status"] != "read_only":
                assert time.monotonic() < give_up, "nobody noticed that the data folder is gone"
            refused = client.post("/v0/topics/orders", json=body)
            assert refused.status_code == 503
            error = refused.json()["error"]
            assert error["code"] == "read_only"
            assert "data was removed or replaced. Put the folder back, then restart the server" in error["message"]
            assert client.get("/v0/ready").json()["read_only_shards"] == [0]
            # The newest records are in memory.
            assert client.post("/v0/topics/orders/diff", json={"from_seq": 0}).json()["records"][0]["data"] == 1
        live.stop()
        assert "data folder vanished" in live.log()
        if vanish not in (move, replace):
            return
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        (tmp_path / "elsewhere").rename(tmp_path / "data")
        live.start()
        wait_until_ready(live.url)
        with httpx.Client(base_url=live.url, trust_env=False, timeout=30) as client:
            assert client.get("/v0/ready").json()["status"] == "ready"
            assert client.post("/v0/topics/orders/diff", json={"from_seq": 0}).json()["records"][0]["data"] == 1


def refused_start(folder: Path, *flags: str) -> str:
    """Returns the error output of a server that cannot start."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    command = [sys.executable, "-m", "topics", "serve", "--port", "0", "--data-dir", str(folder), *flags]
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode not in (0, -9), done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_data_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.write_text("no folder")
    assert f"the data folder {place} is a file. Give a folder with --data-dir" in refused_start(place)
    below = place / "deeper" / "still"
    assert f"the data folder {below} cannot be made: {place} is a file" in refused_start(below)
    assert place.read_text() == "no folder"


def test_new_data_folder_on_a_disk_that_is_too_small_names_the_minimum(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(mount)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk needs root")
    try:
        told = refused_start(mount / "data")
        assert "has 20.0 MiB free, and a new data folder needs at least 96.0 MiB" in told
        assert "full_disk_reserve_bytes" in told and "wal_file_bytes" in told
        assert not (mount / "data").exists()
        small = {"full_disk_reserve_bytes": "1000000", "wal_file_bytes": "1000000", "data_dir": str(mount / "data")}
        with LiveServer(tmp_path, pipeline="off", **small) as live:
            ready = httpx.get(f"{live.url}/v0/ready", trust_env=False).json()
            assert (ready["status"], ready["disk_full"]) == ("ready", False)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)
