"""The package as one zip file, for clusters without an installation."""

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import topics_client
import topics_protocol
from topics_protocol import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def package_zip(folder: Path) -> str:
    """Writes a zip with every module of `topics` and of the client; rebuilt each time, because the code may have
    changed."""
    target = folder / f"topics-{__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for root in (Path(__file__).parents[1], Path(topics_client.__path__[0]), Path(topics_protocol.__path__[0])):
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(root.parent).as_posix())
    return str(target)


def ship(spark: "SparkSession") -> None:
    """Sends the code of this package to the executors of a cluster; its dependencies must be installed there."""
    folder = tempfile.mkdtemp(prefix="topics-ship-")
    archive = package_zip(Path(folder))
    if is_remote(spark):
        spark.addArtifacts(archive, pyfile=True)
        shutil.rmtree(folder)  # It was sent already.
    else:
        spark.sparkContext.addPyFile(archive)
        # Executors fetch it from this path when they start.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def is_remote(spark: "SparkSession") -> bool:
    """Returns whether a session is a client of Spark Connect, without SparkContext, RDDs and local JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
