"""What looking at a data folder, or mending it, has to say: plain values for people and programs alike."""

import msgspec

from topics.core.findings import Finding
from topics.storage.layout import Layout


class Report(msgspec.Struct, kw_only=True):
    """What a look at a data folder found. `findings` is damage; `notes` is what a crash explains or nobody needs."""

    folder: str
    topics: int = 0
    segments: int = 0
    records: int = 0
    frames: int = 0
    bytes_checked: int = 0
    findings: list[Finding] = []
    notes: list[Finding] = []

    @property
    def sound(self) -> bool:
        return not self.findings


class Loss(msgspec.Struct, frozen=True):
    """Records given up: from now on whoever reads across them is told."""

    topic: str
    from_seq: int
    to_seq: int
    sure: bool
    """False where the damage hides whether there were any; then the range is the most there can have been."""


class RepairReport(msgspec.Struct, kw_only=True):
    """What a repair did, or would do."""

    folder: str
    dry_run: bool = False
    found: Report
    losses: list[Loss] = []
    actions: list[str] = []
    """What was changed or could not be brought back, one sentence each."""
    moved: list[str] = []
    """Files that are out of use now, as they were found."""
    moved_to: list[str] = []
    """The folders that hold them."""
    after: Report | None = None
    """What a look at the mended folder found; None when nothing was changed."""

    @property
    def sound(self) -> bool:
        return self.after.sound if self.after is not None else self.found.sound


def relative(layout: Layout, path: str) -> str:
    """A path as reports give it: below the data folder, or in full where it is in the cold one."""
    return path.removeprefix(layout.root + "/")
