"""Generates the synchronous client, `topics_client._sync`, from the asynchronous one, `topics_client._async`.

    python -m tools.sync_client

`make setup`, the build of the package (setup.py) and `make sync-client` run it; the generated modules are not in the
repository. It needs unasync and no module of the project.
"""

import shutil
import tempfile
from pathlib import Path

import unasync

CLIENT = Path(__file__).parents[1] / "src" / "topics_client"
SOURCE, TARGET = CLIENT / "_async", CLIENT / "_sync"
BY_HAND = ("__init__.py", "net.py")
"""Modules that both clients have in their own version."""
_NAMES = {
    "AsyncBody": "Body",
    "AsyncClient": "Client",
    "AsyncConsumer": "Consumer",
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
_HEAD = "# Generated from topics_client._async by tools/sync_client.py; change the source instead.\n"
# Types of awaitables, which a synchronous function returns the inner type of.
_AWAITABLES = (("Coroutine[Any, Any, ", "]"), ("Awaitable[", "]"))


def generate() -> dict[str, str]:
    """Returns the text of each generated module by its file name."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "_async", Path(folder) / "_sync"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        modules = sorted(path for path in source.glob("*.py") if path.name not in BY_HAND)
        rule = unasync.Rule(fromdir="/_async/", todir="/_sync/", additional_replacements=_NAMES)
        unasync.unasync_files([str(path) for path in modules], [rule])
        return {path.name: _HEAD + _without_awaitables((target / path.name).read_text()) for path in modules}


def _without_awaitables(text: str) -> str:
    for opening, closing in _AWAITABLES:
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
    generated = generate()
    for name, text in generated.items():
        # Also where nothing changed: make compares the times of files.
        (TARGET / name).write_text(text)
    for path in TARGET.glob("*.py"):
        if path.name not in BY_HAND and path.name not in generated:
            path.unlink()


if __name__ == "__main__":
    main()
