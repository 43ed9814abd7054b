"""The WebSocket of /v0: its commands, and the messages that answer and follow."""
