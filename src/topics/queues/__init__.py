"""Queues: lease-based delivery of jobs on top of a topic."""
