"""The live screen, drawn by rich."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from topics.cli.shared.output import printable
from topics.cli.watch.view import View

_ABOVE = 4
"""Lines that are not topics."""


def draw(view: View, height: int, trouble: str) -> Group:
    """The screen: the server in a line, then as many topics as there is room for."""
    server = Text()
    for name, value in view.server:
        server.append(f"{name} ", style="dim" if name.islower() else "bold red")
        server.append(f"{value}   ", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(view.head):
        table.add_column(name, justify="left" if place == 0 else "right", overflow="ellipsis", no_wrap=True)
    room = max(height - _ABOVE, 1)
    for row in view.rows[:room]:
        style = "" if row[3] else "dim"
        table.add_row(*(printable(f"{cell:,}" if isinstance(cell, int | float) else cell) for cell in row), style=style)
    left = len(view.rows) - room
    more = (
        f"{left} more topics" if left > 0 else "the server tells of its first 1000 topics" if view.is_truncated else ""
    )
    return Group(server, table, Text(trouble or more, style="bold yellow" if trouble else "dim"))
