"""Packing what routers forward next: gather a stretch of the source, filter it, cut the copies, see what fits.

Routers of one source mostly stand at the same place and follow the same rules. So stretches and loads are kept while
others are due, and the work is done once for all of them.
"""

from topics.core.errors import BatchTooLargeError, TopicsError
from topics.core.selectors import TagMatch
from topics.engine.core import EngineCore
from topics.engine.routing.evidence import absent
from topics.engine.routing.forwarding import Load
from topics.engine.routing.registry import Router, RouterPart
from topics.engine.routing.stretches import Gathered, GatherPlan, fetch, plan_gather
from topics.engine.state.tags import match_text
from topics.engine.streams.description import is_schema_refusal
from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic
from topics.engine.write.quotas import fits_into
from topics.engine.write.room import fitting
from topics.formats.routing import SeqRange
from topics.schema.limits import MAX_PORTION
from topics.wire.copies import Change, Stretch, copies_of, cut_copies, filtered, records_of
from topics.wire.cuts import tag_texts

_SHARED_MAX = 64
"""Stretches of sources that are kept at most."""

Place = tuple[int, int, int]
"""A source's number, a cursor in it, and the last seq to look at."""


class Packer:
    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._gathered: dict[Place, Gathered] = {}
        self._loads: dict[tuple[object, ...], Load] = {}

    def forget(self, others_are_due: bool) -> None:
        """After a tick: what nobody is about to ask for goes."""
        if not others_are_due or len(self._gathered) > _SHARED_MAX:
            self._gathered.clear()
            self._loads.clear()

    def known(self, place: Place) -> Gathered | None:
        return self._gathered.get(place)

    def keep(self, place: Place, gathered: Gathered) -> None:
        self._gathered[place] = gathered

    def gather(self, source: Topic, part: RouterPart, place: Place) -> Gathered | GatherPlan:
        """What lies at a place; only a plan of it where the cold folder has to be asked, which is not the loop's."""
        plan = plan_gather(source, place[1], place[2], part.held)
        if plan.cold:
            return plan
        gathered = self._gathered[place] = fetch(plan, self._core.reader)
        return gathered

    def load(self, router: Router, part: RouterPart, gathered: Gathered, hops: int) -> Load:
        """The copies for a router; those with the same rules get the same."""
        rules, stamp = router.rules, router.stamp()
        # Decided now and not when it was gathered: a checkpoint may have come in between.
        by_value = not in_log(router.source, part, router.cursor + 1)
        key = (id(gathered), rules, stamp, hops, by_value)
        known = self._loads.get(key)
        if known is not None:
            return known
        stretches: list[Stretch] = gathered.stretches
        if rules.filter is not None:
            stretches = filtered(stretches, _passing(stretches, rules.filter))
        if router.present:
            stretches = filtered(stretches, absent(stretches, router.present))
        copies = cut_copies(stretches, Change(rules.preserve_node, rules.preserve_tag, stamp)) if stretches else None
        load = Load(gathered.lost, gathered.upto, _ranges(stretches), copies, rules, stamp, hops, by_value)
        if not router.present:
            self._loads[key] = load
            # A stamp names the router.
            load.shared = stamp is None
        return load

    def takes_all(self, dest: Topic) -> bool:
        """Whether a destination takes whatever comes, so that nobody has to see what fits."""
        return dest.rules.takes_all and not self._core.metered

    def admitted(self, dest: Topic, load: Load) -> Load | TopicsError:
        """A load as its destination takes it: all of it, or what stands before the first record that it does not take.
        Why, where that is nothing, not even a gap: one that is a stream may be closed, or over."""
        if dest.guard is None:
            return load
        state = stream_of(dest)
        if load.count > MAX_PORTION and state is not None and state.staged_description is not None:
            # To look into records takes longer than to forward them.
            load = load.first(MAX_PORTION)
        copies = load.copies
        try:
            records = self._core.path.admit(dest, lambda: records_of(copies) if copies is not None else (), moved=True)
        except TopicsError as error:
            before = _taken_before(error, load.count)
            return self.admitted(dest, load.first(before)) if before else error
        # What is not what the source has cannot be found there by a replay.
        return load if records is None else load.by_its_value(copies_of(records))

    def fitting(self, dest: Topic, load: Load) -> Load | TopicsError:
        """As much of a load as the destination takes; what is in the way when that is nothing."""
        core, copies = self._core, load.copies
        if copies is None:
            return load
        core.expire(dest)
        taken, refused = fitting(dest, copies.sizes, core.limits.max_total_bytes, core.used_bytes)
        if core.metered and taken:
            within = fits_into(core.quotas, dest, copies.sizes[:taken])
            taken, refused = (taken, refused) if within == taken else (within, core.quotas.over_bytes())
        if refused is None:
            return load
        return load.first(taken) if taken else refused


def _taken_before(refusal: TopicsError, count: int) -> int:
    """How many of so many records may be taken, where others are refused for what is in them."""
    if not is_schema_refusal(refusal) or count <= 1:
        return 0
    if isinstance(refusal, BatchTooLargeError):
        return count // 2
    index = refusal.detail.get("index")
    return index if isinstance(index, int) else 0


def in_log(source: Topic, part: RouterPart, seq: int) -> bool:
    """Whether the log behind the last checkpoint holds this record, and with it everything that follows."""
    return seq > part.wal_floor and not source.unlogged and source.config.durability.logged


def _passing(stretches: list[Stretch], match: TagMatch) -> list[int]:
    """The seqs whose tag a filter lets through. Tags are compared as their JSON strings; nothing is decoded."""
    wanted = match_text(match)
    found: list[int] = []
    for view, lo, hi, origin in stretches:
        texts = tag_texts(view, lo, hi)
        if match.prefix:
            found += [origin + index for index, text in texts if text.startswith(wanted)]
        else:
            found += [origin + index for index, text in texts if text == wanted]
    return found


def _ranges(stretches: list[Stretch]) -> list[SeqRange]:
    ranges: list[SeqRange] = []
    for stretch in stretches:
        if ranges and ranges[-1][1] + 1 == stretch.first_seq:
            ranges[-1] = (ranges[-1][0], stretch.last_seq)
        else:
            ranges.append((stretch.first_seq, stretch.last_seq))
    return ranges
