"""What is to be indexed of a stream, what is done, and what is left: decided from the catalog and the manifests."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from topics.core.ranges import Ranges
from topics.formats.catalog import CatalogTopic
from topics.indexing.companions.identity import Plan, plan_of
from topics.schema.contract import decode_contract
from topics.schema.registry import Registry
from topics.spark.deadlines import is_over
from topics.spark.families.erasing import noted, ref_of
from topics.spark.segments import SegmentRef
from topics.storage.companions import CompanionFile, FamilyManifest, Retired, left_uncovered

RETIRE_MS = 600_000
"""How long a file that no longer counts stays for those who have begun to read it."""

ERASE_MS = 86_400_000


class Subject(NamedTuple):
    """A stream that is to be indexed."""

    registry: Registry
    plan: Plan
    generation: str


@lru_cache(maxsize=4096)
def subject_of(contract: bytes) -> Subject | None:
    """What a contract asks to be indexed; None where that is nothing. Streams by the thousand have few contracts."""
    if not contract:
        return None
    try:
        registry = decode_contract(contract).registry
    except ValueError:
        return None
    if registry.search_config is None and registry.routing_key is None:
        return None
    plan = plan_of(registry)
    return Subject(registry, plan, plan.generation)


class FamilyRules(msgspec.Struct, frozen=True):
    fan_out: int = 8
    """So many neighbours of one level become one of the next."""
    merged_bytes: int = 2 << 30
    """Companions that would become larger than this together stay as they are."""
    retire_ms: int = RETIRE_MS
    erase_ms: int = ERASE_MS
    """So long after it is noticed that a file holds what was deleted, it is made again."""


def uncovered(topic: CatalogTopic, manifest: FamilyManifest | None) -> list[SegmentRef]:
    """The segments of a stream that have no companion by the plan that holds now."""
    subject = subject_of(topic.contract)
    if subject is None:
        return []
    covered = manifest.covered(subject.generation) if manifest is not None else []
    found = []
    for segment in topic.segments:
        first = max(segment.first_seq, topic.earliest)
        if first <= segment.last_seq and left_uncovered(first, segment.last_seq, covered):
            found.append(ref_of(topic, segment))
    return found


def settled(manifest: FamilyManifest, topic: CatalogTopic, now_ms: int) -> FamilyManifest:
    """A manifest after what the catalog and the time ask for; the same one where that is nothing."""
    subject = subject_of(topic.contract)
    if subject is None:
        return _without(manifest, manifest.files, now_ms)
    if manifest.generation != subject.generation:
        manifest = _changed(
            manifest, now_ms, generation=subject.generation, generations=manifest.generations + 1,
            plans={**manifest.plans, subject.generation: subject.plan},
        )  # fmt: skip
    covered = manifest.covered(subject.generation)
    gone = [
        file
        for file in manifest.files
        if file.last < topic.earliest or (file.generation != subject.generation and _is_replaced(file, topic, covered))
    ]
    manifest = _without(manifest, gone, now_ms)
    files = noted(manifest, topic, now_ms)
    if files != manifest.files:
        manifest = _changed(manifest, now_ms, files=files)
    known = {subject.generation, *(file.generation for file in manifest.files)}
    if known != manifest.plans.keys():
        manifest = _changed(manifest, now_ms, plans={name: manifest.plans[name] for name in known})
    return manifest


def _is_replaced(file: CompanionFile, topic: CatalogTopic, covered: Ranges) -> bool:
    """Whether others cover what is left of the segments of a file: nothing is made for those that are gone."""
    here = [segment for segment in topic.segments if segment.first_seq <= file.last and segment.last_seq >= file.first]
    return not any(
        left_uncovered(max(segment.first_seq, topic.earliest, file.first), min(segment.last_seq, file.last), covered)
        for segment in here
        if segment.last_seq >= topic.earliest
    )


def _without(manifest: FamilyManifest, gone: Sequence[CompanionFile], now_ms: int) -> FamilyManifest:
    if not gone:
        return manifest
    names = {file.name for file in gone}
    retired = (*manifest.retired, *(Retired(file.name, now_ms, file.cold) for file in gone))
    left = tuple(file for file in manifest.files if file.name not in names)
    return _changed(manifest, now_ms, files=left, retired=retired)


def _changed(manifest: FamilyManifest, now_ms: int, **fields: object) -> FamilyManifest:
    return msgspec.structs.replace(manifest, number=manifest.number + 1, updated_ms=now_ms, **fields)


def with_files(
    manifest: FamilyManifest, made: Sequence[CompanionFile], replaced: Sequence[str], now_ms: int
) -> FamilyManifest:
    """A manifest with new files in the place of old ones."""
    gone = [file for file in manifest.files if file.name in replaced]
    manifest = _without(manifest, gone, now_ms)
    files = sorted((*manifest.files, *made), key=lambda file: (file.generation, file.first))
    return _changed(manifest, now_ms, files=tuple(files))


def outdated(manifest: FamilyManifest, now_ms: int) -> FamilyManifest:
    """A manifest by which everything is to be made again. What there is goes on answering until that is done."""
    name = f"{manifest.generation}~{manifest.number}"
    files = tuple(
        msgspec.structs.replace(file, generation=name) if file.generation == manifest.generation else file
        for file in manifest.files
    )
    plans = {**manifest.plans, name: manifest.plans[manifest.generation]}
    return _changed(manifest, now_ms, files=files, plans=plans)


def over(manifest: FamilyManifest, now_ms: int, rules: FamilyRules) -> list[Retired]:
    """The retired files whose time is over."""
    return [one for one in manifest.retired if is_over(one.since_ms, rules.retire_ms, now_ms)]


class Merge(msgspec.Struct, frozen=True, tag="merge"):
    """Files that are to become one."""

    topic_id: int
    topic: str
    epoch: int
    files: tuple[CompanionFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def merges(manifest: FamilyManifest, topic: CatalogTopic, rules: FamilyRules) -> Iterator[Merge]:
    """Neighbours of one level, as many as make one of the next."""
    run: list[CompanionFile] = []
    for file in manifest.of(manifest.generation):
        if run and (file.level != run[-1].level or not _are_neighbours(run[-1], file, topic)):
            run = []
        run.append(file)
        if len(run) == rules.fan_out:
            if sum(one.bytes for one in run) <= rules.merged_bytes:
                yield Merge(manifest.topic_id, manifest.topic, manifest.epoch, tuple(run))
            run = []


def _are_neighbours(one: CompanionFile, other: CompanionFile, topic: CatalogTopic) -> bool:
    """Whether nothing that a companion lacks lies between two."""
    if one.last + 1 == other.first:
        return True
    return not any(one.last < segment.last_seq and segment.first_seq < other.first for segment in topic.segments)
