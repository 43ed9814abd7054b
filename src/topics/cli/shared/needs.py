"""What some commands need besides, said in one line where it is missing."""

from importlib.util import find_spec

from topics.cli.shared.failures import CommandError


def has_spark() -> bool:
    """Whether Spark is installed, and what goes with it."""
    return all(find_spec(name) is not None for name in ("pyspark", "pyarrow", "pyiceberg"))


def need_spark(what: str) -> None:
    """Raises where Spark is not installed."""
    if not has_spark():
        raise CommandError(
            f"{what} needs Spark, which is not installed: `make setup-spark` in a checkout, or "
            "`pip install '.[spark]'` there, adds it"
        )
