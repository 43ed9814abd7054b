"""What one query may ask for, so that none costs more than it looks."""

from typing import Final

MAX_QUERY_DEPTH: Final = 32
"""Groups and negations inside each other; whoever walks a query recurses."""
MAX_QUERY_CLAUSES: Final = 256
MAX_QUERY_WORDS: Final = 256
"""Words that one value of a text field falls into."""

MAX_SORT_ITEMS: Final = 8
DEFAULT_PAGE_HITS: Final = 50
MAX_PAGE_HITS: Final = 500

DEFAULT_PAGE_KEYS: Final = 100
MAX_PAGE_KEYS: Final = 500

MAX_GROUPS: Final = 65_536
"""Groups of one aggregation, over all its buckets."""
