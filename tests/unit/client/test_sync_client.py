"""The synchronous client is generated from the asynchronous one and has the same public surface."""

import ast
from pathlib import Path

from tools.sync_client import BY_HAND, SOURCE, TARGET, generate


def test_the_generated_modules_are_current() -> None:
    made = generate()
    assert set(made) == {path.name for path in TARGET.glob("*.py")} - set(BY_HAND)
    stale = [name for name, text in made.items() if (TARGET / name).read_text() != text]
    assert stale == [], "run `make sync-client`"


def test_nothing_asynchronous_is_left_in_generated_modules() -> None:
    for name, text in generate().items():
        tree = ast.parse(text)
        waits = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
        assert not any(isinstance(node, waits) for node in ast.walk(tree)), name
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not {one for one in named if one.startswith(("Async", "asyncio"))}, name


def test_the_parts_by_hand_have_the_same_names() -> None:
    def names(folder: Path) -> set[str]:
        found: dict[str, object] = {}
        text = (folder / "net.py").read_text()
        start = text.index("__all__ = ")
        exec(text[start : text.index("]", start) + 1], found)
        exported = found["__all__"]
        assert isinstance(exported, list)
        return set(exported)

    assert names(SOURCE) == names(TARGET)
