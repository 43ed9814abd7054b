"""Search as pure functions: fields, values, queries, matching, sorting, aggregation, and plans over parts.

It knows no disk, no server and no Spark. Whoever holds entries, fresh or sealed, runs these functions over them, so
that every way of answering a query gives the same rows. `topics.indexing.plans` is where to begin.
"""
