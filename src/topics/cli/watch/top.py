"""`topics top`: a live screen, of one look at the metrics a second."""

import sys
import time
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import duration_ms
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import Output, json_line, line, table
from topics.cli.watch.view import Look, Sort, View, look_at, view_of
from topics.client import Client, ConnectionFailed, RetryLater
from topics.system.clock import SystemClock


def top(
    prefix: str = "",
    /,
    *,
    every: Annotated[str, Parameter(help="How often to look.")] = "1s",
    sort: Annotated[Sort, Parameter(help="By what topics are ordered.")] = "rate",
    once: Annotated[
        bool, Parameter(negative="", show_default=False, help="Look twice, print what was seen, and end.")
    ] = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Watch topics, their rates, queues, what routers are behind, and pressure. Ctrl-C ends it.

    Parameters
    ----------
    prefix
        Only topics whose name begins with this.
    """
    pause_s = duration_ms(every, "--every") / 1000
    if pause_s < 0.1:
        raise UsageError(f"--every is {every}; accepted is at least 100ms")
    with connected(server) as client:
        before = _look(client)
        if once or output != "table" or not sys.stdout.isatty():
            while True:
                time.sleep(pause_s)
                now = _look(client)
                _print(view_of(before, now, prefix, sort), output)
                before = now
                if once:
                    return 0
        _live(client, before, pause_s, prefix, sort)
    return 0


def _look(client: Client) -> Look:
    return look_at(client.metrics(), SystemClock().monotonic())


def _live(client: Client, before: Look, pause_s: float, prefix: str, sort: Sort) -> None:
    from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

    from topics.cli.shared.screen import console  # noqa: PLC0415
    from topics.cli.watch.drawing import draw  # noqa: PLC0415

    screen = console()
    view, trouble = view_of(before, before, prefix, sort), ""
    with Live(draw(view, screen.height, trouble), console=screen, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(pause_s)
            try:
                now = _look(client)
                view, trouble, before = view_of(before, now, prefix, sort), "", now
            except (ConnectionFailed, RetryLater) as error:
                trouble = f"the server is away ({error})"
            live.update(draw(view, screen.height, trouble), refresh=True)


def _print(view: View, output: str) -> None:
    if output == "json":
        json_line(view)
        return
    if output == "table":
        line("  ".join(f"{name} {value}" for name, value in view.server))
        table(view.head, view.rows)
        return
    for row in view.rows:
        line(str(row[0]))
