"""Asking before something is gone for good."""

import sys
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.failures import CommandError, UsageError

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="", show_default=False, help="Do not ask.")]


def confirm(question: str, sure: bool) -> None:
    """Raises unless somebody says yes; where there is nobody to ask, it has to be said on the command line."""
    if sure:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on: say --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was deleted")
