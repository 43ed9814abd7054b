"""The index over what is fresh: columns in memory, filled as entries come, answering without looking at any entry.

It is one part of a plan (`topics.indexing.parts`). Its columns are arrays, and a clause of a query is one pass over one
of them, so that 100,000 entries are judged in less than a millisecond and nothing has to be sorted or merged when
entries arrive. See docs/decisions/0067.
"""
