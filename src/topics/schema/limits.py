"""The bounds of a registry, so that no document a client installs costs more than it looks."""

from typing import Final

from topics.core.limits import KIB, MIB

MAX_UPDATE_BYTES: Final = 256 * KIB
"""One request to change a schema or a profile."""
MAX_REGISTRY_BYTES: Final = 4 * MIB
"""All versions of one stream together; every snapshot carries them."""
MAX_DOCUMENT_DEPTH: Final = 64
"""How deep a schema may be nested. Every walk over one recurses, and so does the validator."""

MAX_PATTERNS: Final = 100
MAX_PATTERN_BYTES: Final = MIB
"""One compiled pattern. Its automaton is what a short text like `a{1000}{1000}` makes large."""
MAX_SCHEMA_WEIGHT: Final = 2048
"""What a schema may try for every single element of an array: see `topics.schema.jsonschemas`."""
MAX_UNEVALUATED: Final = 4
"""`unevaluatedProperties` and `unevaluatedItems` in one schema. Each one looks again at all that those below it saw, so
that the cost doubles with every level."""

MAX_MESSAGES: Final = 8
"""What a refusal says about one entry; the rest would say more of the same."""
MAX_ERRORS: Final = 10_000
"""Up to how many errors an entry may have for all of them to be collected. The validator makes each an object of some
size, those of every branch that was tried included: an entry of a MiB has passed five GiB that way."""
MAX_VALIDATION_COST: Final = 32 * MIB
"""The bytes that are looked at in one go, times the weight of the schema; about 10 ns each, at the worst."""
MAX_PORTION: Final = 256
PORTION_BYTES: Final = 256 * KIB
PORTION_COST: Final = MIB
"""How many entries, of how many bytes, and at which cost as above, are looked at before others have their turn. It is a
few milliseconds; a single entry may take longer."""

MAX_LENS_OPS: Final = 256
MAX_PROOF_STEPS: Final = 100_000
"""Comparisons of two schemas by one proof. A union against a union against a union would take for ever."""
MAX_PROMOTED_BYTES: Final = 64 * MIB
"""How large an entry may grow by its lenses, which may copy, and add to every element of an array."""

MAX_UNPACKED_BYTES: Final = 64 * MIB
"""The resources and scopes of the spans of one export: each span is given a copy."""

MAX_KEY_BYTES: Final = KIB
"""A routing key."""

MAX_SEARCH_FIELDS: Final = 256
MAX_ROLLUPS: Final = 32
MAX_ROLLUP_PARTS: Final = 32
"""Dimensions, intervals and measures of one rollup, each."""
MAX_QUERY_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 64
MAX_REDACT_KEYS: Final = 64
