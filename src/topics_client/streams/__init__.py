"""The streams of /v1: every call as a value, and the answers. No function here uses the network."""
