"""Installation of optional dependencies: the command that adds an extra where this copy of topics runs."""

from pathlib import Path
from typing import Literal

# A checkout has this script beside `src`; an installed wheel does not.
_IN_CHECKOUT = (Path(__file__).resolve().parents[3] / "requirements" / "install").is_file()


def install_command(extra: Literal["connect", "otel", "spark"], *, in_checkout: bool = _IN_CHECKOUT) -> str:
    """Returns the shell command that installs an extra: a make target in a checkout, otherwise pip.

    The package itself is installed already, so that pip fetches only what the extra adds.
    """
    if not in_checkout:
        return f"pip install 'topics-engine[{extra}]'"
    if extra == "spark":
        return "make setup-spark"
    return f".venv/bin/pip install '.[{extra}]'"
