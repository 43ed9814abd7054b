"""Tasks on machines without the data folder: they read it from its server, and their results reach the folder."""

import http.server
import threading
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.crash.test_index_build_crash_sweeps import World
from tests.unit.spark.archives import archived
from topics.log.fs import FileSystem, read_small
from topics.log.layout import Layout
from topics.log.object_store.store import StoreUnavailable
from topics.log.object_store.tiered_fs import tiered
from topics.log.posix import PosixFileSystem
from topics.model.settings import Settings, SettingsError
from topics.search.file_index.manifest import IndexStore
from topics.spark.archive.archive_plan import ArchiveRules
from topics.spark.iceberg.manifests import write_synced
from topics.spark.index_builds.index_plan import IndexRules
from topics.spark.pipeline import remote_folder, segment_scan
from topics.spark.pipeline.archive_product import ArchiveProduct
from topics.spark.pipeline.executors import PRODUCT_TASKS
from topics.spark.pipeline.index_product import IndexProduct
from topics.spark.pipeline.pipeline_worker import remote_access
from topics.spark.pipeline.products import Product
from topics.spark.pipeline.remote_folder import FileSource, RemoteFolder, clear
from topics.spark.pipeline.rounds import Pipeline, ShortError, WorkerPlaceError
from topics.spark.pipeline.segment_scan import run_piece
from topics.spark.pipeline.status import WorkerStatus
from topics.testing import FakeDisk, FolderStore, ManualClock, SeededEntropy

STORE = "s3://bucket"
ARCHIVE, TRANSFER = f"{STORE}/archive", f"{STORE}/archive/transfer"
LAYOUT = Layout("data")


class Source:
    """The server of the data folder."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk = disk
        self.error: Exception | None = None
        self.reads = 0

    def read(self, path: str, offset: int, length: int) -> tuple[bytes, int]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        file = self._disk.open(f"data/{path}")
        return file.read_at(offset, min(length, 1000)), file.size()

    def close(self) -> None:
        """There is no connection."""


class Machines:
    """The driver with the data folder, a worker with nothing, and an object store that both reach."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(FakeDisk(), ManualClock(), LAYOUT)
        self.bucket, self.worker_disk = FakeDisk(), FakeDisk()
        self.source = Source(self.world.disk)
        monkeypatch.setattr(
            segment_scan, "remote_folder",
            lambda files, root, url, transfer: RemoteFolder(files, root, self.source, transfer),  # type: ignore[arg-type]
        )  # fmt: skip

    def files(self, disk: FakeDisk) -> FileSystem:
        return tiered(disk, STORE, FolderStore(self.bucket, "bucket"))

    def parallelism(self) -> int:
        return 1

    def run(self, works: Sequence[bytes], about: str) -> Iterator[tuple[int, bytes]]:
        for place, work in enumerate(works):
            yield place, run_piece(self.files(self.worker_disk), PRODUCT_TASKS, work)

    def footprint(self) -> WorkerStatus | None:
        return None

    def probe(self) -> None:
        """All is well."""

    def pipeline(self, server: str = "http://server") -> Pipeline:
        fs = self.files(self.world.disk)
        products: list[Product] = [
            ArchiveProduct(fs, ARCHIVE, ArchiveRules(), SeededEntropy(3)),
            IndexProduct(fs, LAYOUT, IndexRules(fan_out=2), SeededEntropy(4)),
        ]
        return Pipeline(
            fs, LAYOUT, products, self, self.world.clock, places=[LAYOUT.pipeline, ARCHIVE], server=server,
            transfer=TRANSFER,
        )  # fmt: skip

    def run_all(self) -> None:
        made = self.pipeline()
        while made.round():
            pass

    def transferred(self) -> list[str]:
        return remote_folder._left(self.files(self.world.disk), TRANSFER)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines(monkeypatch)
    made.world.create("logs")
    for first in (0, 3, 6):
        made.world.append("logs", first, 3, key=f"k{first}")
        made.world.seal()
    return made


def check(machines: Machines) -> None:
    """The archive and the index files are complete, in the places where the driver looks for them."""
    fs = machines.files(machines.world.disk)
    assert sorted(archived(fs, "logs", ARCHIVE)) == list(range(1, 10))
    store = IndexStore(machines.world.disk, LAYOUT)
    [topic_id] = store.topic_ids()
    manifest = store.load(topic_id)
    assert manifest is not None
    assert [(file.first, file.last) for file in manifest.files] in ([(1, 9)], [(1, 6), (7, 9)])
    assert {file.name for file in manifest.files} <= set(store.files(topic_id))
    assert machines.transferred() == []


def test_tasks_without_the_data_folder_build_the_archive_and_index_files(machines: Machines) -> None:
    machines.run_all()
    check(machines)
    assert machines.source.reads
    assert not machines.worker_disk.exists("data")


def test_tasks_that_see_the_data_folder_do_not_ask_the_server(machines: Machines) -> None:
    machines.worker_disk = machines.world.disk
    machines.run_all()
    check(machines)
    assert not machines.source.reads


def test_without_a_server_the_run_fails_by_the_name_of_the_place(machines: Machines) -> None:
    with pytest.raises(WorkerPlaceError, match=r"does not see the same .*/pipeline as the driver.*pipeline_url"):
        machines.pipeline(server="").round()


def test_server_of_another_folder_is_refused(machines: Machines) -> None:
    inner = machines.source.read

    def read(path: str, offset: int, length: int) -> tuple[bytes, int]:
        return (b"another", 7) if path == "pipeline/nonce" else inner(path, offset, length)

    machines.source.read = read  # type: ignore[method-assign]
    with pytest.raises(WorkerPlaceError, match="does not see the same data/pipeline"):
        machines.pipeline().round()


def test_server_that_is_away_fails_the_round_and_the_next_one_goes_on(machines: Machines) -> None:
    made = machines.pipeline()
    machines.source.error = StoreUnavailable("away")
    with pytest.raises(ShortError, match="away"):
        made.round()
    assert made.status.quarantined == ()
    machines.source.error = None
    while made.round():
        pass
    check(machines)


def test_refused_key_fails_the_run_and_quarantines_nothing(machines: Machines) -> None:
    made = machines.pipeline()
    machines.source.error = PermissionError("give the executors a key")
    with pytest.raises(WorkerPlaceError, match="give the executors a key"):
        made.round()
    assert made.status.quarantined == ()


def test_driver_killed_at_any_copy_leaves_work_for_the_next_one(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, calls = remote_folder._copy, []

    def killed(*given: object) -> None:
        calls.append(given)
        if len(calls) <= 2:
            raise KeyboardInterrupt
        copy(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(remote_folder, "_copy", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            machines.run_all()
    machines.run_all()
    check(machines)


def test_full_disk_of_the_driver_publishes_nothing_of_the_round(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = machines.pipeline()
    with monkeypatch.context() as patch:
        patch.setattr(remote_folder, "_copy", _full)
        with pytest.raises(OSError, match="No space left"):
            made.round()
    while made.round():
        pass
    check(machines)


def _full(*given: object) -> None:
    raise OSError(28, "No space left on device")


def test_leftovers_of_killed_tasks_are_removed(machines: Machines) -> None:
    fs = machines.files(machines.world.disk)
    write_synced(fs, f"{TRANSFER}/families/000000000000000a/left.companion", b"x")
    write_synced(fs, f"{TRANSFER}/families/000000000000000b/left.companion", b"x")
    assert len(machines.transferred()) == 2
    clear(fs, TRANSFER)
    assert machines.transferred() == []


def test_setting_needs_an_object_store() -> None:
    url = "http://server:4000/"
    assert remote_access(Settings(archive="1", archive_dir="s3://b/a")) == ("", "")
    chosen = Settings(archive="1", archive_dir="s3://b/a", cold_dir="s3://b/c", pipeline_url=url)
    assert remote_access(chosen) == ("http://server:4000", "s3://b/a/transfer")
    assert remote_access(Settings(cold_dir="s3://b/c", pipeline_url=url)) == ("http://server:4000", "s3://b/c/transfer")
    with pytest.raises(SettingsError, match="set archive_dir or cold_dir"):
        remote_access(Settings(archive="1", pipeline_url=url))


# The connection to the server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        data = b"0123456789"
        status = {"meta/catalog": 200, "meta/busy": 503, "meta/secret": 403}.get(query["path"][0], 404)
        part = data[int(query["offset"][0]) :][: int(query["length"][0])] if status == 200 else b"{}"
        if self.headers["authorization"] != "Bearer key":
            status, part = 401, b"{}"
        self.send_response(status)
        self.send_header("content-length", str(len(part)))
        self.send_header("topics-file-bytes", str(len(data)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *given: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_answers_of_the_server_become_errors_of_files(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileSource(url, "key")
    assert source.read("meta/catalog", 2, 3) == (b"234", 10)
    with pytest.raises(FileNotFoundError):
        source.read("meta/gone", 0, 1)
    with pytest.raises(StoreUnavailable, match="answered 503"):
        source.read("meta/busy", 0, 1)
    with pytest.raises(PermissionError, match=r"spark\.executorEnv\.TOPICS_API_KEY"):
        source.read("meta/secret", 0, 1)
    source.close()
    stranger = FileSource(url, None)
    with pytest.raises(PermissionError):
        stranger.read("meta/catalog", 0, 1)
    stranger.close()
    monkeypatch.setattr(remote_folder, "PART_BYTES", 4)
    folder = RemoteFolder(PosixFileSystem(), "data", FileSource(url, "key"), TRANSFER)
    assert read_small(folder, "data/meta/catalog") == "0123456789"
    assert folder.exists("data/meta/catalog")
    assert not folder.exists("data/meta/gone")
    folder.close()


def test_server_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        FileSource("http://127.0.0.1:1", None).read("meta/catalog", 0, 1)
