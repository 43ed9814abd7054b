"""What some commands need besides, said in one line where it is missing."""

from importlib.util import find_spec

from topics.cli.shared.failures import CommandError


def need_spark(what: str) -> None:
    """Raises where Spark is not installed."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise CommandError(
            f"{what} needs Spark, which is not installed: `make setup-spark` in a checkout, or "
            "`pip install '.[spark]'` there, adds it"
        )
