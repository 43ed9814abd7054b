"""The streams of /v1: every call as a value, and what calls return. Nothing here touches the network."""
