"""The /v0 protocol: topics, their records, and what operators ask."""
