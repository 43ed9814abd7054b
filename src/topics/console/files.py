"""Which files make up the console, and the reference of the API."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from topics.console.site import Site

_INDEX = "index.html"
_SWAGGER = "flask_swagger_ui"
_SWAGGER_FILES = ("swagger-ui.css", "swagger-ui-bundle.js")
REFERENCE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Swagger UI makes markup of its own out of strings, from descriptions that are ours."""


def console_site() -> Site:
    """The console. Its files are found now and read when they are asked for."""
    sources = dict(_below(files("topics.console") / "static", ""))
    sources[""] = sources.pop(_INDEX)
    return Site(sources)


def reference_site() -> Site | None:
    """The reference of the API in Swagger UI; None where the package that has its files is not installed."""
    # Found without importing it: its files are all that is wanted, and its code needs a web framework.
    spec = find_spec(_SWAGGER)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "dist"
    if not all((folder / name).is_file() for name in _SWAGGER_FILES):
        return None
    sources = dict(_below(files("topics.console") / "reference", ""))
    sources[""] = sources.pop(_INDEX)
    return Site({**sources, **{name: folder / name for name in _SWAGGER_FILES}}, REFERENCE_POLICY)


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{path}{entry.name}/")
        elif not entry.name.startswith("."):
            yield f"{path}{entry.name}", entry
