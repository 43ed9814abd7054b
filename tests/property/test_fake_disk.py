"""The fake disk does the same as the real one, and loses exactly the unsynced data.

Random operations run on the fake and on the real file system side by side, and beside a model of what is durable that
is so plain that it can be checked by reading: a sync takes a copy of the bytes, a folder's sync takes a copy of the
names. Renames stay within a folder here; across folders they are a step of two folders, which the unit tests cover.
"""

import shutil
import tempfile
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.effort import effort
from topics.log.fs import File, FileSystem
from topics.log.posix import PosixFileSystem
from topics.testing import FakeDisk, Survival

FOLDERS = ("/x", "/y")
folders = st.sampled_from(FOLDERS)
names = st.sampled_from(["a", "b", "c"])
offsets = st.one_of(st.integers(0, 20), st.integers(0, 3000))
lengths = offsets
data = st.one_of(st.binary(max_size=30), st.binary(min_size=500, max_size=1500))
picks = st.integers(0, 5)
seeds = st.integers(0, 2**32)


class Twin:
    """One file, open on both file systems, with its bytes as of the last sync."""

    def __init__(self, fake: File, real: File) -> None:
        self.fake = fake
        self.real = real
        self.synced = b""
        # Equal bytes do not prove that nothing waits for a sync: one write may have undone another.
        self.waiting = False

    def whole(self) -> bytes:
        return self.fake.read_at(0, self.fake.size())


class TwoDisks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.fake = FakeDisk()
        self.real = PosixFileSystem()
        self.opened: list[Twin] = []
        self.live: dict[str, dict[str, Twin]] = {folder: {} for folder in FOLDERS}
        self.durable: dict[str, dict[str, Twin]] = {folder: {} for folder in FOLDERS}

    @initialize()
    def make_folders(self) -> None:
        for folder in FOLDERS:
            self.fake.make_dirs(folder)
            self.real.make_dirs(self.root + folder)

    def teardown(self) -> None:
        for twin in self.opened:
            twin.real.close()
        shutil.rmtree(self.root)

    @rule(folder=folders, name=names)
    def create(self, folder: str, name: str) -> None:
        path = f"{folder}/{name}"
        twin = Twin(self.fake.open(path, create=True), self.real.open(self.root + path, create=True))
        if name in self.live[folder]:
            # The same bytes, opened once more: the operations to come go through both openings in turn.
            twin.real.close()
            self.live[folder][name].fake = twin.fake
        else:
            self.opened.append(twin)
            self.live[folder][name] = twin

    @precondition(lambda self: self.opened)
    @rule(pick=picks, offset=offsets, data=data)
    def write(self, pick: int, offset: int, data: bytes) -> None:
        self._change(pick, lambda file: file.write_at(offset, data))

    @precondition(lambda self: self.opened)
    @rule(pick=picks, length=lengths)
    def truncate(self, pick: int, length: int) -> None:
        self._change(pick, lambda file: file.truncate(length))

    @precondition(lambda self: self.opened)
    @rule(pick=picks, length=lengths)
    def allocate(self, pick: int, length: int) -> None:
        self._change(pick, lambda file: file.allocate(length))

    def _change(self, pick: int, change: Callable[[File], None]) -> None:
        twin = self.opened[pick % len(self.opened)]
        change(twin.fake)
        change(twin.real)
        twin.waiting = True

    @precondition(lambda self: self.opened)
    @rule(pick=picks)
    def sync(self, pick: int) -> None:
        self._change(pick, lambda file: file.sync())
        twin = self.opened[pick % len(self.opened)]
        twin.synced = twin.whole()
        twin.waiting = False

    @rule(folder=folders)
    def sync_dir(self, folder: str) -> None:
        self.fake.sync_dir(folder)
        self.real.sync_dir(self.root + folder)
        self.durable[folder] = dict(self.live[folder])

    @rule(folder=folders, old=names, new=names)
    def rename(self, folder: str, old: str, new: str) -> None:
        source, target = f"{folder}/{old}", f"{folder}/{new}"
        assert _error(lambda: self.fake.rename(source, target)) == _error(
            lambda: self.real.rename(self.root + source, self.root + target)
        )
        if old in self.live[folder]:
            self.live[folder][new] = self.live[folder].pop(old)

    @rule(folder=folders, name=names)
    def remove(self, folder: str, name: str) -> None:
        path = f"{folder}/{name}"
        assert _error(lambda: self.fake.remove(path)) == _error(lambda: self.real.remove(self.root + path))
        self.live[folder].pop(name, None)

    @rule()
    def clone(self) -> None:
        """A copy is as good as the original, but its files are not open."""
        copy = self.fake.clone()
        assert _tree(copy) == _tree(self.fake)
        assert _tree(copy.crash(Survival.EVERYTHING)) == _tree(self.fake)

    @invariant()
    def both_look_the_same(self) -> None:
        assert _tree(self.fake) == _tree(self.real, self.root)
        for twin in self.opened:
            assert twin.whole() == twin.real.read_at(0, twin.real.size())
            assert bytes(twin.fake.map()) == twin.whole()

    @invariant()
    def a_power_loss_leaves_what_was_synced(self) -> None:
        assert _tree(self.fake.clone().crash(Survival.NOTHING)) == {
            f"{folder}/{name}": twin.synced for folder in FOLDERS for name, twin in self.durable[folder].items()
        }

    @rule(survive=st.sampled_from([Survival.TORN, Survival.SCATTERED]), seed=seeds)
    def a_power_loss_does_not_harm_what_was_synced_and_left_alone(self, survive: Survival, seed: int) -> None:
        after = _tree(self.fake.clone().crash(survive, seed))
        for folder in FOLDERS:
            for name, twin in self.durable[folder].items():
                if self.live[folder] == self.durable[folder] and not twin.waiting:
                    assert after[f"{folder}/{name}"] == twin.synced


def _error(call: Callable[[], None]) -> type[OSError] | None:
    try:
        call()
    except OSError as error:
        return type(error)
    return None


def _tree(fs: FileSystem, root: str = "") -> dict[str, bytes]:
    tree = {}
    for folder in FOLDERS:
        for name in fs.list_dir(root + folder):
            file = fs.open(f"{root}{folder}/{name}")
            tree[f"{folder}/{name}"] = file.read_at(0, file.size())
            file.close()
    return tree


TwoDisks.TestCase.settings = effort(60, steps=40)
test_two_disks = TwoDisks.TestCase
