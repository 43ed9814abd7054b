"""Queues: lease-based delivery of jobs on top of a topic's log. `Queues` is what the rest of the world uses."""
