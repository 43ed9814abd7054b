"""Watches: sessions, the event streams that are opened on them, and what every event stream of /v0 begins with."""
