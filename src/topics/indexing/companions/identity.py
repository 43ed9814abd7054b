"""Whose companions they are and of what: digests of everything that decides what is in a column.

Two columns with the same digest were extracted alike, so a companion that was made for another description of its
stream still serves those queries whose fields have not changed. All digests together are a plan, and the digest of the
plan is its generation: companions of another one are made anew, and serve as long as they can until that is done.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET
from xxhash import xxh3_128_hexdigest

from topics.indexing.aggregation import Aggregation
from topics.indexing.predicates import Predicate, bind_search, fields_of
from topics.schema.registry import Registry
from topics.schema.search import Count, Field, Rollup, SearchConfig, Summary, SummaryParts

EXTRACTION: Final = 1
"""The version of the functions that extract, tokenise and normalise. Whoever changes what they give counts it up."""

ROLLUPS: Final = 2
"""The version of how rollups are stored. Those of another one are not read, and made anew with their companions."""

_encode = msgspec.msgpack.Encoder(order="sorted").encode


def _digest(*parts: Any) -> str:
    return xxh3_128_hexdigest(_encode([EXTRACTION, *parts]))


class Plan(msgspec.Struct, frozen=True):
    """What a companion of a stream holds, by the digests of it."""

    fields: dict[str, str]
    rollups: dict[str, str]
    sums: dict[str, str]
    """Of entries that are summaries, by `rollup/measure`."""

    @property
    def generation(self) -> str:
        return _digest(self.fields, self.rollups, self.sums)


def plan_of(registry: Registry) -> Plan:
    config = registry.search_config
    if config is None:
        return Plan({}, {}, {})
    version = registry.current_version
    promotion = _promotion(registry)
    fields = {name: _field_digest(field, version, promotion) for name, field in config.fields.items()}
    rollups, sums = {}, {}
    for name, rollup in config.rollups.items():
        looked_at = _rollup_fields(rollup, config, fields)
        rollups[name] = _digest(ROLLUPS, rollup, config.aliases, config.default_fields, looked_at)
        for measure_name, measure in rollup.measures.items():
            if isinstance(measure, SummaryParts):
                sums[f"{name}/{measure_name}"] = _digest(measure, promotion)
    return Plan(fields, rollups, sums)


def _promotion(registry: Registry) -> str:
    """Entries of the current version are as they were written, whatever it is called."""
    if registry.current_version <= 1:
        return ""
    return _digest([(version.boundary, version.lens, version.schema) for version in registry.versions])


def _field_digest(field: Field, version: int, promotion: str) -> str:
    normalizer = None if field.normalizer is UNSET else field.normalizer
    analyzer = None if field.analyzer is UNSET else field.analyzer
    return _digest(field.kind, normalizer, analyzer, field.pointer_for(version), promotion)


def _rollup_fields(rollup: Rollup, config: SearchConfig, digests: dict[str, str]) -> dict[str, str]:
    return {name: digests[name] for name in sorted(fields_of_rollup(rollup, config))}


def fields_of_rollup(rollup: Rollup, config: SearchConfig) -> set[str]:
    """The fields that are looked at when a rollup is added up."""
    needed = {rollup.timestamp_field, *rollup.dimensions}
    includes = [rollup.include]
    for measure in rollup.measures.values():
        if isinstance(measure, Summary):
            needed.add(measure.field)
        elif isinstance(measure, Count):
            includes.append(measure.include)
    for include in includes:
        if include is not UNSET:
            needed.update(fields_of(bind_search(include, config).predicate))
    return needed


class Needs(msgspec.Struct, frozen=True):
    """What a query asks of a companion, each with the digest that it must have."""

    fields: dict[str, str] = {}
    sums: dict[str, str] = {}

    def are_met(self, plan: Plan) -> bool:
        return all(plan.fields.get(name) == digest for name, digest in self.fields.items()) and all(
            plan.sums.get(name) == digest for name, digest in self.sums.items()
        )


def needs_of_search(plan: Plan, predicate: Predicate, sorted_by: tuple[str, ...]) -> Needs:
    return Needs({name: plan.fields[name] for name in (*fields_of(predicate), *sorted_by)})


def needs_of_aggregation(plan: Plan, ask: Aggregation) -> Needs:
    fields = fields_of_rollup(ask.rollup, ask.config) | set(fields_of(ask.predicate))
    parts = [name for name, measure in ask.rollup.measures.items() if isinstance(measure, SummaryParts)]
    # Summaries that no rollup declares are in no companion.
    sums = {f"{ask.name}/{name}": plan.sums.get(f"{ask.name}/{name}", "nowhere") for name in parts}
    return Needs({name: plan.fields[name] for name in sorted(fields)}, sums)
