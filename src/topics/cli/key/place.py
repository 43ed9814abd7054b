"""Where the keys are: which file the commands change."""

import os
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.failures import UsageError

KeyFile = Annotated[
    str | None, Parameter(name=["--file"], help="The file of keys. (TOPICS_KEY_FILE)", show_default=False)
]


def key_file(given: str | None) -> str:
    path = given or os.environ.get("TOPICS_KEY_FILE", "").strip()
    if not path:
        raise UsageError("say which file of keys with --file or TOPICS_KEY_FILE")
    return path
