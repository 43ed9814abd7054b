"""The places of a query's words."""

from typing import Any

import pytest

from tests.unit.search.helpers import LOGS
from topics.schema.search_fields import parse_search
from topics.search.query.match import LOOK_CHARS, SHOW_CHARS, Highlighter
from topics.search.query.predicates import bind_search

CONFIG = parse_search(LOGS)


def highlights(q: str, entry: Any, *names: str) -> dict[str, Any]:
    return Highlighter(bind_search(q, CONFIG).predicate, CONFIG, 1, names or None).of(entry)


def marked(q: str, text: str) -> list[str]:
    found = highlights(q, {"message": text}).get("message", [])
    return [part["text"][begin:end] for part in found for begin, end in part["spans"]]


@pytest.mark.parametrize(
    ("q", "text", "words"),
    [
        ("message:card", "The card, CARD-holder", ["card", "CARD"]),
        ("message:decl*", "card Declined", ["Declined"]),
        ('message:"card declined"', "declined card declined", ["card", "declined"]),
        ("message:card -message:bad", "card bad", ["card"]),
        ("message:card OR message:paid", "paid by card", ["paid", "card"]),
        ("message:gone", "card", []),
        ("has:message", "card", []),
    ],
)
def test_words_are_marked(q: str, text: str, words: list[str]) -> None:
    assert marked(q, text) == words


def test_a_long_text_is_shown_around_its_first_match() -> None:
    (part,) = highlights("message:needle", {"message": "hay " * 500 + "needle" + " hay" * 500})["message"]
    assert len(part["text"]) <= SHOW_CHARS
    ((begin, end),) = part["spans"]
    assert part["text"][begin:end] == "needle"
    assert highlights("message:needle", {"message": "x " * LOOK_CHARS + "needle"}) == {}
    (part,) = highlights("message:n*", {"message": "n" * 900})["message"]
    assert part["spans"] == [[0, SHOW_CHARS]]


def test_only_texts_are_looked_at() -> None:
    entry = {"message": ["a card", 5, ["card b"], None], "why": "card"}
    assert set(highlights("card", entry)) <= {"message", "why"}
    assert len(highlights("message:card", entry)["message"]) == 2
    assert highlights("message:card", entry, "why") == {}
    odds: tuple[Any, ...] = (None, 5, {}, [])
    for odd in odds:
        assert highlights("message:card", {"message": odd}) == {}
