"""Transactions: records for several topics, staged unseen and committed at once, once for each id and sequence."""
