"""Makes the half of the client that waits out of the one for asyncio: `python -m tools.halves` writes it.

A test makes it again and fails when what is committed differs.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

CLIENT = Path(__file__).parents[1] / "src" / "topics_client"
SOURCE, TARGET = CLIENT / "_async", CLIENT / "_sync"
BY_HAND = ("__init__.py", "net.py")
"""What the halves do not have in common."""
_NAMES = {
    "AsyncBody": "Body",
    "AsyncClient": "Client",
    "AsyncFollower": "Follower",
    "AsyncPool": "Pool",
    "AsyncProducer": "Producer",
    "AsyncSocket": "Socket",
    "AsyncStreamLoop": "StreamLoop",
    "AsyncTail": "Tail",
    "AsyncTransaction": "Transaction",
    "AsyncTransport": "Transport",
    "AsyncWatcher": "Watcher",
    "AsyncWorker": "Worker",
    "_async": "_sync",
    "aclose": "close",
}
_HEAD = "# Made of topics_client._async by `python -m tools.halves`; change that one.\n"
# What is left of a type once there is nothing to wait for.
_TYPES = (("Coroutine[Any, Any, ", "]"), ("Awaitable[", "]"))


def generate(folder: Path) -> dict[str, str]:
    """The generated modules by their names, made below a folder."""
    source, target = folder / "_async", folder / "_sync"
    shutil.copytree(SOURCE, source)
    modules = sorted(path for path in source.glob("*.py") if path.name not in BY_HAND)
    rule = unasync.Rule(fromdir="/_async/", todir="/_sync/", additional_replacements=_NAMES)
    unasync.unasync_files([str(path) for path in modules], [rule])
    for path in modules:
        made = target / path.name
        made.write_text(_HEAD + _without_waiting(made.read_text()))
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(CLIENT.parents[1] / "pyproject.toml"), "--quiet", str(target)]
    ours = ["--config", 'lint.isort.known-first-party=["topics", "topics_client", "topics_protocol"]']
    # Names that only waiting needed, the order of imports, and loops that only hand on.
    mend = ["check", "--select", "F401,I001,UP028", "--fix", "--unsafe-fixes"]
    subprocess.run([*ruff, *mend, *ours, *config], check=True)
    subprocess.run([*ruff, "format", *config], check=True)
    return {path.name: (target / path.name).read_text() for path in modules}


def _without_waiting(text: str) -> str:
    for opening, closing in _TYPES:
        while opening in text:
            start = text.index(opening)
            inner = start + len(opening)
            depth, end = 1, inner
            while depth:
                depth += {"[": 1, "]": -1}.get(text[end], 0)
                end += 1
            text = text[:start] + text[inner : end - len(closing)] + text[end:]
    return text


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in generate(Path(folder)).items():
            (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
