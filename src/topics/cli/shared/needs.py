"""What some commands need besides, said in one line where it is missing."""

from importlib.util import find_spec

from topics.cli.shared.failures import CommandError


def has_spark() -> bool:
    """Whether Spark is installed."""
    return find_spec("pyspark") is not None and find_spec("pyarrow") is not None


def need_spark(what: str) -> None:
    """Raises where Spark is not installed."""
    if not has_spark():
        raise CommandError(
            f"{what} needs Spark, which is not installed: `make setup-spark` in a checkout, or "
            "`pip install '.[spark]'` there, adds it"
        )
