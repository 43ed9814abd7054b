"""Routers: forward records from one topic into another, at least once or exactly once."""
