"""Small files that tell other programs something and are no part of the log."""

import os
from pathlib import Path


def write_whole(path: str, text: str) -> None:
    """Puts `text` at `path` in one step: who polls for the file sees none of it or all of it."""
    # The process id keeps two servers with the same target from writing into one temporary file.
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
