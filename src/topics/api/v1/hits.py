"""The hits of a search as answers show them.

A page has hundreds of hits, so each is one value that is encoded with all the others in one go, and what can be had for
all of them together is.
"""

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.v1.search_requests import SearchRequest
from topics.indexing.sorting import OFFSET
from topics.indexing.values import number_json
from topics.schema.documents import parse
from topics.searching.hits import Hits
from topics.streams.offsets import offsets_of
from topics.streams.search.fetching import Fetched
from topics.streams.search.outcome import Outcome
from topics.streams.search.seen import Seen

_PORTION_HITS = 100
_PORTION_BYTES = 256 * 1024
"""What is shown before others have their turn."""
_NO_HITS = b'"hits":[]'
_encode = msgspec.json.Encoder().encode

Score = int | float
Highlights = dict[str, Any] | UnsetType
Source = msgspec.Raw | UnsetType


class Entries(NamedTuple):
    """What hits show of their entries, in the order of the hits."""

    fields: Sequence[Any]
    highlights: Sequence[Highlights]
    sources: Sequence[Source]


class StreamHit(msgspec.Struct, frozen=True, gc=False):
    offset: str
    score: Score
    sort: Sequence[Any]
    fields: Any
    highlights: Highlights = UNSET
    source: Source = UNSET


class TopicHit(msgspec.Struct, frozen=True, gc=False, rename={"seq": "$seq"}):
    seq: int
    score: Score
    sort: Sequence[Any]
    fields: Any
    highlights: Highlights = UNSET
    data: Source = UNSET


class NamedHit(msgspec.Struct, frozen=True, gc=False):
    """A hit of one of several streams."""

    stream: str
    offset: str
    score: Score
    sort: Sequence[Any]
    fields: Any
    highlights: Highlights = UNSET
    source: Source = UNSET


Make = Callable[[SearchRequest, Hits, Entries], Sequence[Any]]
"""From hits and what is shown of their entries to what the answer has: `stream_hits` and the like."""


class Shown(NamedTuple):
    """The hits of a search as answers show them, whatever they call an offset."""

    hits: list[bytes]
    """Their JSON, some hits a piece and commas between them."""
    total: dict[str, Any]
    next_place: list[Any] | None
    decoded: int
    """How many entries were read."""


def is_large(fetched: Fetched) -> bool:
    """Whether to show these takes longer than others should wait."""
    entries = fetched.entries
    return len(entries) > _PORTION_HITS or sum(map(len, entries.values())) > _PORTION_BYTES


def showing(asked: SearchRequest, outcome: Outcome, fetched: Fetched, make: Make) -> Generator[None, None, Shown]:
    """Shows the hits of a search, a portion at a time."""
    result, found = outcome.result, fetched.entries
    # Where the entries were too large for one answer, the page is shorter.
    reached = result.hits.between(0, fetched.reached)
    # An entry that was removed since it was found is no hit any more.
    kept = reached if len(found) == len(reached) else reached.only(found)
    pieces: list[bytes] = []
    at = 0
    while at < len(kept):
        if at:
            yield
        raws = _portion(found, kept.seqs[at : at + _PORTION_HITS])
        portion = kept.between(at, at + len(raws))
        at += len(raws)
        entries = shown_entries(asked, raws, _fields(asked, portion.seqs, raws, fetched.seen))
        pieces.append(_encode(make(asked, portion, entries))[1:-1])
    goes_on = len(reached) > 0 and (result.is_full or len(reached) < len(result.hits))
    exact = outcome.complete
    total: dict[str, Any] = {"value": len(kept), "relation": "eq" if exact and not goes_on else "gte"}
    if asked.track_total:
        total = {"value": result.matched, "relation": "eq" if exact else "gte"}
    return Shown(pieces, total, reached.place(len(reached) - 1) if goes_on else None, len(found))


def _portion(found: dict[int, bytes], seqs: list[int]) -> list[bytes]:
    """The first of some entries, as many as are shown in one turn."""
    raws = [found[seq] for seq in seqs]
    if sum(map(len, raws)) < _PORTION_BYTES:
        return raws
    ends = accumulate(map(len, raws))
    return raws[: next((number for number, end in enumerate(ends, 1) if end >= _PORTION_BYTES), len(raws))]


def encode_body(body: dict[str, Any], shown: Shown) -> bytes:
    """The JSON of an answer, whose `hits` are empty, with those that are shown."""
    encoded = _encode(body)
    if not shown.hits:
        return encoded
    # No string of the body has this in it, because its quotes would be escaped.
    before, _, after = encoded.partition(_NO_HITS)
    parts = [before, _NO_HITS[:-1], shown.hits[0]]
    for piece in shown.hits[1:]:
        parts += (b",", piece)
    return b"".join((*parts, b"]", after))


def _fields(asked: SearchRequest, seqs: list[int], raws: list[bytes], seen: Seen | None) -> list[Any]:
    """The declared fields of entries, as they were shown before where they were."""
    if seen is None or asked.fields is not None:
        return asked.shows.of(raws, asked.fields)
    known = seen.shown_by(asked.shows)
    found: list[Any] = list(map(known.get, seqs))
    if None in found:
        new = [place for place, fields in enumerate(found) if fields is None]
        fields = asked.shows.of([raws[place] for place in new])
        seen.note_shown([seqs[place] for place in new], fields)
        for place, value in zip(new, fields, strict=True):
            found[place] = value
    return found


def shown_entries(asked: SearchRequest, raws: list[bytes], fields: list[Any] | None = None) -> Entries:
    """What hits show of their entries; `fields` where they are known."""
    nothing: list[Any] = [UNSET] * len(raws)
    fields = asked.shows.of(raws, asked.fields) if fields is None else fields
    highlights = nothing
    if asked.highlight is not None:
        highlights = [asked.highlight.of(parse("entry", raw)) for raw in raws]
    return Entries(fields, highlights, list(map(msgspec.Raw, raws)) if asked.source else nothing)


def stream_hits(asked: SearchRequest, hits: Hits, entries: Entries) -> list[StreamHit]:
    offsets = offsets_of(asked.topic, hits.seqs)
    return list(map(StreamHit, offsets, _scores(hits), _shown_places(hits, offsets), *entries))


def named_hits(asked: SearchRequest, hits: Hits, entries: Entries) -> list[NamedHit]:
    name = asked.topic.name
    return [NamedHit(name, *msgspec.structs.astuple(hit)) for hit in stream_hits(asked, hits, entries)]


def topic_hits(asked: SearchRequest, hits: Hits, entries: Entries) -> list[TopicHit]:
    return list(map(TopicHit, hits.seqs, _scores(hits), _shown_places(hits, hits.seqs), *entries))


def _scores(hits: Hits) -> list[Score]:
    return list(map(number_json, hits.scores)) if hits.scores else [0] * len(hits)


def shown_seqs(place: list[Any]) -> list[Any]:
    """A place as /v0 tells it."""
    return [number_json(value) for value in place]


def shown_place(asked: SearchRequest, place: list[Any]) -> list[Any]:
    """A place as /v1 tells it."""
    names = [key.name for key in asked.sort.keys]
    (offset,) = offsets_of(asked.topic, [place[names.index(OFFSET)]])
    return [offset if name == OFFSET else number_json(value) for name, value in zip(names, place, strict=True)]


def _shown_places(hits: Hits, offsets: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The places of hits, whose offsets are known already."""
    columns = [offsets if values is None else map(number_json, values) for values in hits.keys]
    return list(zip(*columns, strict=True))
