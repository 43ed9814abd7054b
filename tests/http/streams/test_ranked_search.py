"""Ranking by rarity over the wire: scores by the formula, pages that keep their statistics, and refusals."""

from math import log
from typing import Any

import httpx
import pytest

from tests.http.streams.conftest import code_of
from tests.http.streams.test_many_search import search as search_many
from tests.http.streams.test_search import described, find, put, sources
from tests.http.streams.test_topic_search import search as search_topic

TEXTS = ("card card card", "card declined by the bank", "card", "timeout of the upstream card", "card payment")


@pytest.fixture
def texts(http: httpx.Client, path: str) -> str:
    described(http, path)
    put(http, path, *({"message": text, "eventTime": number} for number, text in enumerate(TEXTS)))
    return path


def bm25(found: int, times: int, length: int, entries: int = 5, words: int = 16) -> float:
    idf = log(1 + (entries - found + 0.5) / (found + 0.5))
    return idf * (times * 2.2) / (times + 1.2 * (0.25 + 0.75 * length / (words / entries)))


def messages(answer: dict[str, Any]) -> list[str]:
    return [source["message"] for source in sources(answer)]


def test_scores_are_bm25_over_the_stream(http: httpx.Client, texts: str) -> None:
    plain = find(http, texts, "message:card")
    frequencies = {text: text.split().count("card") for text in TEXTS}
    assert {hit["source"]["message"]: hit["score"] for hit in plain["hits"]} == frequencies
    assert messages(plain) == sorted(reversed(TEXTS), key=frequencies.__getitem__, reverse=True)
    ranked = find(http, texts, "message:card", rank="bm25")
    expected = {text: bm25(5, text.split().count("card"), len(text.split())) for text in TEXTS}
    assert {hit["source"]["message"]: hit["score"] for hit in ranked["hits"]} == pytest.approx(expected, rel=1e-12)
    # Two of the same length are in the order of their times, the newest first.
    assert messages(ranked) == [TEXTS[0], TEXTS[2], TEXTS[4], TEXTS[3], TEXTS[1]]
    both = find(http, texts, "message:card OR message:timeout", rank="bm25")
    assert both["hits"][0]["source"]["message"] == TEXTS[3]
    assert both["hits"][0]["score"] == pytest.approx(bm25(5, 1, 5) + bm25(1, 1, 5), rel=1e-12)


def test_phrases_and_beginnings_are_terms_of_their_own(http: httpx.Client, texts: str) -> None:
    (hit,) = find(http, texts, 'message:"the bank"', rank="bm25")["hits"]
    assert hit["score"] == pytest.approx(bm25(1, 1, 5), rel=1e-12)
    hits = find(http, texts, "message:de*", rank="bm25", track_total=True)["hits"]
    assert [hit["score"] for hit in hits] == [pytest.approx(bm25(1, 1, 5), rel=1e-12)]
    answer = find(http, texts, "message:pay* message:card", rank="bm25", explain=True)
    assert answer["explain"]["rank"] == {
        "name": "bm25",
        "fields": {"message": {"entries": 5, "words": 16}},
        "terms": [
            {"field": "message", "term": "pay*", "entries": 1},
            {"field": "message", "term": "card", "entries": 5},
        ],
    }


def test_pages_keep_the_statistics_of_the_first(http: httpx.Client, texts: str) -> None:
    name = texts.removeprefix("/v1/stream/")
    whole = find(http, texts, "message:card", rank="bm25")
    pages: list[dict[str, Any]] = []
    place = None
    while place is not None or not pages:
        after: dict[str, Any] = {} if place is None else {"search_after": place}
        pages.append(find(http, texts, "message:card", rank="bm25", size=2, **after))
        place = pages[-1]["next_search_after"]
        # All of these have other scores by themselves, and change the scores of the others.
        put(http, texts, {"message": "card " * 9, "eventTime": 9}, *[{"message": "other words", "eventTime": 9}] * 7)
        # Deleted entries are no longer counted.
        assert http.post(f"/v0/topics/{name}/delete", json={"before_seq": 2}).status_code == 200
    scored = [(hit["offset"], hit["score"]) for page in pages for hit in page["hits"]]
    assert [hit for hit in scored if hit in {(h["offset"], h["score"]) for h in whole["hits"]}] == [
        (hit["offset"], hit["score"]) for hit in whole["hits"]
    ]
    assert len({offset for offset, _ in scored}) == len(scored)


def test_a_page_behind_a_hit_is_ranked_anew(http: httpx.Client, texts: str) -> None:
    """A client that continues from the sort values of a hit gets the hits behind it by the current ranking."""
    first = find(http, texts, "message:card", rank="bm25", size=2)
    rest = find(http, texts, "message:card", rank="bm25", search_after=first["hits"][-1]["sort"])
    assert messages(first) + messages(rest) == messages(find(http, texts, "message:card", rank="bm25"))


def test_a_ranking_is_asked_for_in_parameters_over_topics_and_over_many(http: httpx.Client, texts: str) -> None:
    name = texts.removeprefix("/v1/stream/")
    expected = find(http, texts, "message:card", rank="bm25", size=4)
    scores = [hit["score"] for hit in expected["hits"]]
    got = http.get(f"{texts}/_search", params={"q": "message:card", "rank": "bm25", "size": "4"}).json()
    assert [hit["score"] for hit in got["hits"]] == scores
    topic = search_topic(http, f"{name}", q="message:card", rank="bm25", size=4)
    assert [hit["score"] for hit in topic["hits"]] == scores
    rest = search_topic(http, name, q="message:card", rank="bm25", search_after=topic["next_search_after"])
    assert [hit["data"]["message"] for hit in rest["hits"]] == [TEXTS[1]]
    many = search_many(http, [name], q="message:card", rank="bm25", size=4)
    assert [hit["score"] for hit in many["hits"]] == scores
    behind = search_many(http, [name], q="message:card", rank="bm25", search_after=many["next_search_after"])
    assert [hit["source"]["message"] for hit in behind["hits"]] == [TEXTS[1]]


def test_statistics_are_those_of_each_stream(http: httpx.Client, texts: str) -> None:
    other = described(http, f"{texts}-other")
    put(http, other, *[{"message": "nothing of that kind", "eventTime": 1}] * 30, {"message": "card", "eventTime": 1})
    names = [path.removeprefix("/v1/stream/") for path in (texts, other)]
    answer = search_many(http, names, q="message:card", rank="bm25")
    # Rare in the one and in every entry of the other.
    assert answer["hits"][0]["stream"] == names[1]
    alone = {
        path: {hit["score"] for hit in find(http, path, "message:card", rank="bm25")["hits"]} for path in (texts, other)
    }
    assert {hit["score"] for hit in answer["hits"]} == alone[texts] | alone[other]


@pytest.mark.parametrize(
    "statistics", [[], [1], [1, 2, 3, 4], [1, 2, -1], [1, 2, 3.5], [1, 2, "3"], "abc", None, [1, 2, 2**60]]
)
def test_statistics_of_something_else_are_refused(http: httpx.Client, texts: str, statistics: Any) -> None:
    place = [*find(http, texts, "message:card", rank="bm25", size=1)["hits"][0]["sort"], statistics]
    answer = http.post(f"{texts}/_search", json={"q": "message:card", "rank": "bm25", "search_after": place})
    assert (answer.status_code, code_of(answer)) == (400, "bad_request")
    assert "search_after" in answer.text


def test_statistics_may_be_anything_that_could_be_counted(http: httpx.Client, texts: str) -> None:
    place = find(http, texts, "message:card", rank="bm25", size=1)["hits"][0]["sort"]
    for statistics in ([0, 0, 0], [0, 0, 5], [2**53, 2**53, 2**53], [5, 0, 0]):
        found = find(http, texts, "message:card", rank="bm25", search_after=[9e9, *place[1:], statistics])
        assert sorted(messages(found)) == sorted(TEXTS)


def test_unknown_ranking_is_refused(http: httpx.Client, texts: str) -> None:
    for rank in ("tfidf", 1, ["bm25"], True):
        assert http.post(f"{texts}/_search", json={"q": "a", "rank": rank}).status_code == 400
    assert http.get(f"{texts}/_search", params={"q": "a", "rank": "best"}).status_code == 400
    # Without a ranking there are no statistics.
    place = [*find(http, texts, "message:card", size=1)["hits"][0]["sort"], [5, 16, 5]]
    assert http.post(f"{texts}/_search", json={"q": "message:card", "search_after": place}).status_code == 400


def test_query_without_words_is_sorted_as_without_ranking(http: httpx.Client, texts: str) -> None:
    for q in ("", "has:message", "-message:card", "eventTime:>=3", "message:nowhere"):
        ranked, plain = find(http, texts, q, rank="bm25"), find(http, texts, q)
        assert [ranked[name] for name in ("hits", "total", "next_search_after")] == [
            plain[name] for name in ("hits", "total", "next_search_after")
        ]
