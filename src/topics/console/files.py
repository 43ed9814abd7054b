"""Which files make up the console."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from topics.console.site import Site

_INDEX = "index.html"


def console_site() -> Site:
    """The console. Its files are found now and read when they are asked for."""
    sources = dict(_below(files("topics.console") / "static", ""))
    sources[""] = sources.pop(_INDEX)
    return Site(sources)


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{path}{entry.name}/")
        elif not entry.name.startswith("."):
            yield f"{path}{entry.name}", entry
