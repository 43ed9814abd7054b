"""The half of the client that waits is what the generator makes of the one for asyncio."""

from pathlib import Path

from tools.halves import BY_HAND, SOURCE, TARGET, generate


def test_what_is_committed_is_what_is_generated(tmp_path: Path) -> None:
    made = generate(tmp_path)
    assert set(made) == {path.name for path in TARGET.glob("*.py")} - set(BY_HAND)
    stale = [name for name, text in made.items() if (TARGET / name).read_text() != text]
    assert stale == [], "run `make halves`"


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
