"""Transactions: records for several topics, staged invisibly and committed atomically."""
