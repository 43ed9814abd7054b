"""What caches may keep of a read, and how they ask whether it still holds.

    W/"slice:<start>:<next>:key=<key>:fmt=<json or raw>:filter=<filter>"    as the protocol has it
    W/"slice:<start>:<next>:key=<key>:fmt=<json or raw>:filter=<filter>:v2:r=<what is left>:c"

Entries never change, so the places where a slice begins and ends say all about it, for as long as every entry between
them is there and shown as it was written. Once some are gone the tag says what is left. A count of removals would not
do: a crash may take back a delete of a class that does not sync, and the next delete would be given its number. What is
left is therefore told by a digest of it, which needs no memory and cannot be wrong after any restart. So is what a
filter found, always: another search description finds other entries by the same words.

`:v<version>` is there when entries of earlier versions are shown as ones of this version of the schema, and `:c` when
the slice reaches the end of a closed stream.
"""

from hashlib import blake2b
from urllib.parse import quote

from topics.api.calls import Call
from topics.api.v1.answers import NO_STORE, Header
from topics.core.config import TopicType
from topics.engine.state.presence import is_whole, removed_count
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.streams.contracts import has_versions
from topics.streams.offsets import START, offset_of
from topics.streams.reading import ReadSpec, StreamSlice

_IMMUTABLE = "max-age=31536000, immutable"
_REVALIDATED = "max-age=60, stale-while-revalidate=300"
_DIGEST_BYTES = 8


def etag_of(topic: Topic, spec: ReadSpec, found: StreamSlice, closed: bool) -> str:
    start, following = offset_of(topic, spec.position), offset_of(topic, found.position)
    form = "json" if spec.as_json else "raw"
    key = quote(spec.key or "", safe="")
    left = (
        "" if _is_complete(topic, spec, found) else f":r={blake2b(found.body, digest_size=_DIGEST_BYTES).hexdigest()}"
    )
    shown = quote(spec.filter or "", safe="") + (f":v{found.promoted_to}" if found.promoted_to else "")
    return f'W/"slice:{start}:{following}:key={key}:fmt={form}:filter={shown}{left}{":c" if closed else ""}"'


def _is_complete(topic: Topic, spec: ReadSpec, found: StreamSlice) -> bool:
    """Whether the two ends say all: every entry between them is there, and nothing chose among them but a key. An end
    may lie inside an entry, which then counts."""
    before, last = spec.position.counter, found.position.counter + (found.position.in_block > 0)
    # A key that is empty stands in the tag as none does.
    if spec.filter is not None or spec.key == "":
        return False
    if spec.key is None:
        return found.count == last - before
    return is_whole(topic, before + 1, last)


def has_it(given: str | None, etag: str) -> bool:
    """Whether an If-None-Match names what would be sent. Tags are compared weakly, as for every GET."""
    if given is None:
        return False
    wanted = etag.removeprefix("W/")
    tags = [tag.strip() for tag in given.split(",")]
    return any(tag == "*" or tag.removeprefix("W/") == wanted for tag in tags)


def cache_control(call: Call, topic: Topic, offset: str, spec: ReadSpec, found: StreamSlice, immutable: bool) -> Header:
    """A full chunk of a stream from which nothing is ever taken may be kept for good, the rest for a minute, and
    nothing at all may be anything soon."""
    if not found.count:
        return NO_STORE
    # Without an offset of its own, the same address leads to another stream once this one is deleted; and where there
    # is a schema, a later one may come with a lens that shows the same entries otherwise.
    bound = bool(offset) and offset != START and not has_versions(topic)
    full = bound and not found.at_tail and spec.key is None and spec.filter is None
    for_good = immutable and full and not _may_shrink(topic) and not removed_count(topic)
    # With keys on, what one client may see is nothing for a cache that others use.
    whose = "public" if call.key.number < 0 else "private"
    return "cache-control", f"{whose}, {_IMMUTABLE if for_good else _REVALIDATED}"


def _may_shrink(topic: Topic) -> bool:
    """Whether entries of a stream go by themselves: by its config, its own end, or those of what it inherits."""
    config, state, origin = topic.config, stream_of(topic), topic.origin
    if config.ttl_ms or config.cap_records or config.cap_bytes or config.type is not TopicType.LOG:
        return True
    if state is not None and (state.ttl_s is not None or state.expires_ms is not None):
        return True
    return origin is not None and (origin.topic is None or _may_shrink(origin.topic))
