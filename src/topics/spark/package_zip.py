"""The package as one file, for clusters whose machines do not have it installed."""

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
    """A zip with every module of `topics` and of the client it uses; made again each time, because the code may have
    changed."""
    target = folder / f"topics-{__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for root in (Path(__file__).parents[1], Path(topics_client.__path__[0]), Path(topics_protocol.__path__[0])):
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(root.parent).as_posix())
    return str(target)


def ship(spark: "SparkSession") -> None:
    """Gives the executors of a cluster the code of this package; what it imports must be installed there."""
    folder = tempfile.mkdtemp(prefix="topics-ship-")
    archive = package_zip(Path(folder))
    if is_remote(spark):
        spark.addArtifacts(archive, pyfile=True)
        shutil.rmtree(folder)  # It was sent.
    else:
        spark.sparkContext.addPyFile(archive)
        # Executors fetch it from here whenever they are started.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def is_remote(spark: "SparkSession") -> bool:
    """Whether a session is a client of Spark Connect, which has no SparkContext, no RDDs and no local JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
