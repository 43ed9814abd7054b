"""What rich draws: text that is taken as it is, and bars of progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

_WIDTH = 160
"""Of a table that does not go to a terminal."""


def console(*, stderr: bool = False) -> Console:
    """Shows text as it is: names and paths come from files, and must not be taken for markup or emoji."""
    plain = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not plain.is_terminal:
        plain.width = _WIDTH
    return plain


@contextmanager
def progress(what: str) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar of bytes on standard error, on a terminal only: what to call with the total, and with each step."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def on_total(total: int) -> None:
            bar.update(task, total=total)

        def on_bytes(count: int) -> None:
            bar.update(task, advance=count)

        yield on_total, on_bytes
