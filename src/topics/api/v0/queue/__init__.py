"""Queues: claims and what becomes of them, dead letters, leases, and jobs pushed over an event stream."""
