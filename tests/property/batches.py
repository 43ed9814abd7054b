"""Random input of writers: names, tags, payloads and configs chosen to collide, to be cut wrongly and to need escapes.

Payloads are JSON text and not values, because the same text must come back, byte for byte.

There are two kinds of batches. `batches` are built from the ground up, for tests about the bytes. `handfuls` are taken
from a fixed store of such records, for tests about histories: two choices make a whole batch, so hundreds of histories
of dozens of steps cost little, and a failing one still shrinks to a few plain records.
"""

import json
from itertools import cycle, islice
from random import Random

from hypothesis import strategies as st

from tests.unit.conftest import LOCAL
from topics.model.records import Record
from topics.model.router_rules import DeleteSelector, TagMatch
from topics.model.topic_config import Discard, Durability, TopicConfigPatch

# Mostly one topic, because a history spread over many never gets far with any of them.
names = st.sampled_from(["a", "a", "a", "a", "b", "c"])

# A few tags are common, so that a delete finds something, and finds several in a row.
COMMON_TAGS = ("a", "a", "a", "ab", "b")
ODD_TAGS = ("", "abc", "%d", "100%", '"', '","data":', "a\\", "a\n", "\x00", "ä", "äö", "\U0001f600", "*")
NODES = ("n", "n%s", 'n"', '","data":', "knoten-ü", "\\")
# Spellings that decoding and encoding again would change, and texts that look like the parts of a fragment.
ODD_PAYLOADS = (
    b"1.0", b"1e2", b"-0", b"0.10", b"null", b'""', b"[ ]", b"{ }", b'"\\u0041\\/"', b'{"a":1,"a":2}',
    b'"\\",\\"data\\":"', b'{"data":1,"meta":{},"$tag":"a"}', b'[{"$seq":1,"$ts":2,"data":3},\n{"$seq":2}]',
    b'"%d%b%%"', '"größer als \U0001f600"'.encode(), b'"' + b"x" * 150 + b'"',
)  # fmt: skip
ODD_METAS = (b"{}", b'{"$tag":"a"}', b'{ "meta" : "\\"}" }', b'{"data":{"meta":1}}')

common_tags = st.sampled_from(COMMON_TAGS)
tags = common_tags | st.sampled_from(ODD_TAGS)
nodes = st.sampled_from(NODES)
keys = st.sampled_from(["key", "key", 'schlüssel"%'])

texts = st.one_of(
    st.sampled_from(['","data":', ',"$tag":"a"}', '{"$seq":1,"$ts":2,"data":3}', ',"meta":', "}", '"', "%b%d%%", "\\"]),
    st.text(max_size=12),
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def _spelled(value: object, spaces: bool, ascii_only: bool) -> bytes:
    separators = (" ,\t", " :\n ") if spaces else (",", ":")
    return json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode(errors="backslashreplace")


payloads = st.one_of(
    st.sampled_from(ODD_PAYLOADS),
    st.builds(_spelled, values, st.booleans(), st.booleans()),
    st.integers(1, 150).map(lambda size: b'"%b"' % (b"x" * size)),
)
metas = st.one_of(
    st.sampled_from(ODD_METAS),
    st.builds(_spelled, st.dictionaries(texts, values, max_size=2), st.booleans(), st.booleans()),
)

plain_records = st.builds(Record, payloads)
records = st.one_of(
    plain_records,
    st.builds(Record, payloads, tag=common_tags),
    st.builds(Record, payloads, tag=tags),
    st.builds(Record, payloads, tag=st.none() | tags, node=st.none() | nodes, meta=st.none() | metas),
)
batches = st.one_of(
    st.lists(records, min_size=1, max_size=4),
    st.lists(plain_records, min_size=1, max_size=6),
    st.lists(records, min_size=7, max_size=17),
)


def _store() -> list[Record]:
    """Plain records first, because a failing history should shrink to them."""
    rng = Random(20)

    def odd() -> Record:
        tag = rng.choice([None, *ODD_TAGS])
        node, meta = rng.choice([None, *NODES]), rng.choice([None, *ODD_METAS])
        return Record(rng.choice(ODD_PAYLOADS), tag, node, meta)

    plain = [Record(b"%d" % number) for number in range(1, 21)]
    tagged = [Record(b'"%b"' % (b"y" * rng.randrange(40)), rng.choice(COMMON_TAGS)) for _ in range(60)]
    return [*plain, *tagged, *[rng.choice([odd(), odd(), *plain[:1], *tagged[:1]]) for _ in range(200)]]


_STORE = _store()


def handful(first: int, count: int) -> list[Record]:
    """So many records of the store, which is a ring."""
    return list(islice(cycle(_STORE), first, first + count))


handfuls = st.builds(
    handful,
    st.integers(0, len(_STORE) - 1),
    st.integers(1, 4) | st.integers(1, 6) | st.integers(7, 17),
)

matches = st.builds(TagMatch, tags, st.booleans())
positions = st.integers(0, 40) | st.integers(0, 400)
selectors = st.one_of(
    st.builds(DeleteSelector, positions, st.none()),
    st.builds(DeleteSelector, st.none(), matches),
    st.builds(DeleteSelector, positions, matches),
)

patches = st.builds(
    TopicConfigPatch,
    # Mostly without limits: records evicted at once are never in a segment, flagged or moved.
    cap_records=st.sampled_from([0, 0, 0, 1, 5, 9, 20]),
    cap_bytes=st.just(0) | st.just(0) | st.integers(1, 1500),
    ttl_ms=st.sampled_from([0, 0, 0, 0, 1, 100, 1000, 5000]),
    discard=st.sampled_from(Discard),
    durability=st.sampled_from([*LOCAL, Durability.DISK, Durability.DISK]),
    dedupe_node=st.booleans(),
    idempotency_window_ms=st.sampled_from([0, 500, 120_000, 120_000]),
)
