"""What random writers send: names, tags, payloads and configs chosen to collide, to be cut wrongly and to need escapes.

Payloads are JSON text and not values, because what comes back must be that text, byte for byte.
"""

import json

from hypothesis import strategies as st

from topics.core.config import Discard, TopicConfigPatch
from topics.core.durability import Durability
from topics.core.records import Record
from topics.core.selectors import DeleteSelector, TagMatch

# Mostly one topic, because a history spread over many never gets far with any of them.
names = st.sampled_from(["a", "a", "a", "a", "b", "c"])

TAGS = ("", "a", "ab", "abc", "b", "%d", "100%", '"', '","data":', "a\\", "a\n", "\x00", "ä", "äö", "\U0001f600", "*")
tags = st.sampled_from(TAGS)
nodes = st.sampled_from(["n", "n%s", 'n"', '","data":', "knoten-ü", "\\"])
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
    # Spellings that decoding and encoding again would change.
    st.sampled_from(
        [b"1.0", b"1e2", b"-0", b"0.10", b"null", b'""', b"[ ]", b"{ }", b'"\\u0041\\/"', b'{"a":1,"a":2}']
    ),
    st.builds(_spelled, values, st.booleans(), st.booleans()),
    st.integers(1, 150).map(lambda size: b'"%b"' % (b"x" * size)),
)
metas = st.one_of(
    st.sampled_from([b"{}", b'{"$tag":"a"}', b'{ "meta" : "\\"}" }', b'{"data":{"meta":1}}']),
    st.builds(_spelled, st.dictionaries(texts, values, max_size=2), st.booleans(), st.booleans()),
)

plain_records = st.builds(Record, payloads)
records = st.one_of(
    plain_records,
    st.builds(Record, payloads, tag=tags),
    st.builds(Record, payloads, tag=st.none() | tags, node=st.none() | nodes, meta=st.none() | metas),
)
batches = st.one_of(
    st.lists(records, min_size=1, max_size=4),
    st.lists(plain_records, min_size=1, max_size=6),
    st.lists(records, min_size=7, max_size=17),
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
    cap_records=st.just(0) | st.integers(1, 12),
    cap_bytes=st.just(0) | st.integers(1, 600),
    ttl_ms=st.just(0) | st.sampled_from([1, 100, 1000, 5000]),
    discard=st.sampled_from(Discard),
    durability=st.sampled_from([*Durability, Durability.DISK, Durability.DISK]),
    dedupe_node=st.booleans(),
    idempotency_window_ms=st.sampled_from([0, 500, 120_000, 120_000]),
)
