"""What a list says of topics that sleep, read from their snapshots without making topics of them.

With a million topics nothing that a page asks for is in a cache of the processor, and most of what it costs is to wait
for memory. So a page is looked up as a whole: all numbers, then all places, and then the frames. Only a loop as short
as that of `map` lets the processor wait for several at once.
"""

from collections.abc import Sequence

from topics.core.errors import DamageError
from topics.core.findings import Finding
from topics.engine.sleeping.places import FILE_SHIFT, OFFSET_MASK, SIZE_BITS, Places
from topics.formats.frame import FrameKind, read_body
from topics.formats.snapshot import TopicGlance, decode_glance

_TOPIC = FrameKind.TOPIC
"""A name of its own: to find a member of an enum takes longer than to compare it."""


def read_glances(places: Places, ids: Sequence[int | None]) -> list[TopicGlance | None]:
    """The topics of these numbers; None where there is none, as for one that is awake. DamageError."""
    found: list[TopicGlance | None] = []
    files = places.files
    for topic_id, place in zip(ids, list(map(places.by_id.get, ids)), strict=True):  # type: ignore[arg-type]
        if topic_id is None or place is None:
            found.append(None)
            continue
        try:
            # Taken apart here: a call for each part would cost as much as the decoding.
            view, offset = files[place >> FILE_SHIFT].view, place >> SIZE_BITS & OFFSET_MASK
            glance = decode_glance(read_body(view, offset, _TOPIC))
            if glance.topic_id != topic_id:
                raise ValueError(f"topic {glance.topic_id} is where topic {topic_id} should be")
        except ValueError as error:
            raise unreadable(places, place, error) from error
        found.append(glance)
    return found


def unreadable(places: Places, place: int, error: ValueError) -> DamageError:
    return DamageError([Finding(places.path(place), f"a topic cannot be read: {error}")])
