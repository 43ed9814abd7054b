"""The answers of a server of the same protocol, given again by the pure functions. The server's own test replays the
same conversations over HTTP."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from tests.unit.search.helpers import plenty
from topics.schema.profiles.metrics import SEARCH, Metrics
from topics.schema.search_fields import SearchConfig, parse_search
from topics.search.query.aggregate import parse_aggregation, show
from topics.search.query.field_values import declared_fields, number_json
from topics.search.query.plan import Ask, Entries, Entry, Span, aggregate, search
from topics.search.query.predicates import bind_search
from topics.search.query.scan import Scan
from topics.search.query.sort import parse_place, parse_sort

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    conversation["id"]: conversation["steps"]
    for conversation in json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
}


def offset(number: int) -> str:
    """An entry's offset as the recordings have it: base 32 of the number behind it, shifted."""
    digits, value = "", (number + 1) << 34
    for _ in range(26):
        digits, value = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[value % 32] + digits, value // 32
    return digits


def number(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(digit)
    return (value >> 34) - 1


class Replay:
    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.config: SearchConfig | None = None
        self.entries: list[Entry] = []
        self.after: list[Any] | None = None
        for step in steps:
            self.take(step)

    def take(self, step: dict[str, Any]) -> None:
        path = urlsplit(step["path"])
        resource = path.path.rpartition("/")[2]
        if resource == "_schema" and "search" in step["body"]:
            self.config = parse_search(step["body"]["search"])
        elif resource == "_profile":
            self.config = parse_search(SEARCH)
        elif resource == "_search" and step["status"] == 200:
            given = step.get("body") or {name: value[0] for name, value in parse_qs(path.query).items()}
            self.check_search(step["answer"], given)
        elif resource == "_aggregate":
            self.check_aggregate(step["answer"], step["body"])
        elif step["method"] == "POST" and not resource.startswith("_"):
            for value in step["body"] if isinstance(step["body"], list) else [step["body"]]:
                stored = Metrics().normalise(0, value, 0) if "metric" in value and "unit" in value else value
                self.entries.append(Entry(len(self.entries), stored, 1))

    def parts(self) -> list[Scan]:
        cuts = [self.entries[: len(self.entries) // 2], self.entries[len(self.entries) // 2 :]]
        return [Scan(Entries(Span(cut[0].number, cut[-1].number, len(cut)), cut)) for cut in cuts if cut]

    def check_search(self, answer: dict[str, Any], given: dict[str, Any]) -> None:
        assert self.config is not None
        query = bind_search(given["q"], self.config)
        asked = given.get("sort", [])
        sort = parse_sort(asked.split(",") if isinstance(asked, str) else asked, self.config, query.has_text)
        size = int(given.get("size", 50))
        after = (
            parse_place(self.after, sort, self.config, lambda text: number(str(text)))
            if "search_after" in given
            else None
        )
        ask = Ask(config=self.config, version=1, predicate=query.predicate, sort=sort, size=size, after=after)
        page = search(self.parts(), ask, plenty())
        fields = declared_fields(self.config, 1)
        hits = [
            {
                "offset": offset(hit.number),
                "score": number_json(hit.score),
                "sort": self.place(hit.place, ask),
                "fields": fields(self.entries[hit.number].value),
                "source": self.entries[hit.number].value,
            }
            for hit in page.hits
        ]
        assert hits == answer["hits"]
        assert {"value": len(hits), "relation": "eq" if page.is_exact else "gte"} == answer["total"]
        self.after = None if page.next_after is None else self.place(page.next_after, ask)
        assert self.after == answer["next_search_after"]

    @staticmethod
    def place(place: tuple[Any, ...], ask: Ask) -> list[Any]:
        return [
            offset(value) if key.name == "offset" else value for key, value in zip(ask.sort.keys, place, strict=True)
        ]

    def check_aggregate(self, answer: dict[str, Any], given: dict[str, Any]) -> None:
        assert self.config is not None
        ask = parse_aggregation(msgspec.json.encode(given), self.config, 1)
        sums = aggregate(self.parts(), ask, plenty())
        assert msgspec.json.decode(show(sums.groups, ask)) == answer["buckets"]


@pytest.mark.parametrize(
    "name", [name for name in CONVERSATIONS if name[:2] in ("s-", "a-") or name == "metrics-profile"]
)
def test_the_recorded_answers_come_again(name: str) -> None:
    Replay(CONVERSATIONS[name])
