"""The package as one file, for clusters whose machines do not have it installed."""

import tempfile
import zipfile
from pathlib import Path

import topics
from topics import __version__


def package_zip(folder: Path | None = None) -> str:
    """A zip with every module of this package; made again each time, because the code may have changed."""
    target = (folder or Path(tempfile.mkdtemp(prefix="topics-ship-"))) / f"topics-{__version__}.zip"
    root = Path(topics.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(root.parent).as_posix())
    return str(target)
