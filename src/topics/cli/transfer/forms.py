"""What files may hold, and on what they are made."""

from typing import Annotated, Literal

from cyclopts import Parameter

Form = Literal["jsonl", "parquet"]
FileForm = Annotated[
    Form, Parameter(name="--format", help="What the files are: JSON lines, or Parquet, which is made on Spark.")
]
OnSpark = Annotated[
    bool | None,
    Parameter(
        negative="--no-spark",
        show_default=lambda _: "by size, where Spark is installed",
        help="Do it on Spark, in parallel and with a folder of files; or never.",
    ),
]
