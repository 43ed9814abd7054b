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
MAX_SCHEMA_WEIGHT: Final = 256
"""What a schema may look at for every single element of an array: see `topics.schema.jsonschemas`."""
MAX_UNEVALUATED: Final = 4
"""`unevaluatedProperties` and `unevaluatedItems` in one schema. Each one looks again at all that those below it saw, so
that the cost doubles with every level."""

MAX_MESSAGES: Final = 8
"""What a refusal says about one entry; the rest would say more of the same."""
MAX_EXPLAINED: Final = 16 * KIB
"""Up to how many bytes of an entry times members of its schema all of its errors are collected. The validator makes
each of them an object of some size, and an entry can have as many as it has bytes."""

MAX_LENS_OPS: Final = 256
MAX_PROOF_STEPS: Final = 50_000
"""Comparisons of two schemas by one proof. A union against a union against a union would take for ever."""
MAX_PROMOTED_BYTES: Final = 64 * MIB
"""How large an entry may grow by its lenses, which may copy, and add to every element of an array."""

MAX_KEY_BYTES: Final = KIB
"""A routing key."""

MAX_SEARCH_FIELDS: Final = 256
MAX_ROLLUPS: Final = 32
MAX_ROLLUP_PARTS: Final = 32
"""Dimensions, intervals and measures of one rollup, each."""
MAX_QUERY_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 64
MAX_REDACT_KEYS: Final = 64
