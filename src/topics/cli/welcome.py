"""What a server that was just started says to a person: where it is, who may come in, and what to try."""

import os
import shutil

from topics import __version__
from topics.cli.shared.connection import DEFAULT_URL
from topics.config.settings import Settings


def welcome(address: str, settings: Settings, program: str) -> str:
    """The lines; `program` is how the command line was called, so that what is shown can be typed as it stands."""
    url = f"http://{address}"
    if settings.api_keys is None and settings.key_file is None:
        keys = "off: whoever reaches this address may read, change and delete everything; TOPICS_API_KEYS sets some"
    else:
        keys = "on: commands need one, by TOPICS_API_KEY or --api-key"
    elsewhere = "" if url == DEFAULT_URL else f" --url {url}"
    command = called(program)
    lines = (
        ("", f"topics {__version__} listens on {url}"),
        ("data", os.path.abspath(settings.data_dir)),
        ("keys", keys),
        ("look", f"{url}/console"),
        ("try", f"""{command} append orders '{{"order":1}}'{elsewhere}"""),
        ("", f"{command} tail orders -f{elsewhere}"),
        ("stop", "Ctrl-C"),
    )
    head, *rest = (text if not name and at == 0 else f"  {name:<5} {text}" for at, (name, text) in enumerate(lines))
    return "\n".join(["", head, *rest, ""])


def called(program: str) -> str:
    """How to call the command line again from the same folder."""
    if os.path.basename(program) == "__main__.py":
        return "python -m topics"
    found = shutil.which("topics")
    if found is not None and os.path.exists(program) and os.path.samefile(found, program):
        return "topics"
    return os.path.relpath(program) if os.path.isabs(program) and os.path.exists(program) else program
