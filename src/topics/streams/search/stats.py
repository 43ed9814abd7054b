"""What is counted about searches."""

import msgspec


class SearchStats(msgspec.Struct, kw_only=True):
    """Since the server began. A query is a search, an aggregation or a list of routing keys."""

    queries: int = 0
    failures: int = 0
    """Queries that were not answered at all."""
    seconds: float = 0.0
    entries: int = 0
    """Entries that queries looked at."""
    out_of_time: int = 0
    out_of_memory: int = 0
    out_of_bytes: int = 0
    scanned_bytes: int = 0
    """What filtered reads looked at, and queries besides their indexes."""
    processes_lost: int = 0
    memory_bytes: int = 0
    """What indexes take now, as far as it is known."""
    fetches: dict[str, int] = {}
    """Companions that were fetched from an object store, by what became of it (`streams.search.cached`)."""
    cache_bytes: int = 0
    """Companions of an object store on the local disk."""
