"""`topics pipeline zip`."""

from pathlib import Path

from topics.spark.shipping import package_zip


def zip(folder: str = ".", /) -> int:
    """Write the package to a file for spark-submit.

    Parameters
    ----------
    folder
        Where the file goes.
    """
    print(package_zip(Path(folder)))
    return 0
