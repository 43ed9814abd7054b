"""`topics version` and `topics completion`."""

from typing import Literal

from topics.cli.output import line
from topics_protocol import __version__


def version() -> int:
    """Print the version."""
    print(f"topics {__version__}")
    return 0


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print a completion script for a shell.

    bash: eval "$(topics completion bash)" in ~/.bashrc; zsh: topics completion zsh > a folder of $fpath, named _topics;
    fish: topics completion fish > ~/.config/fish/completions/topics.fish

    Parameters
    ----------
    shell
        The shell.
    """
    from topics.cli import app  # noqa: PLC0415 - it is what imported this module

    line(app.generate_completion(prog_name="topics", shell=shell).rstrip())
    return 0
