"""The /v0 protocol: topics, their records, and operations."""
