"""Message types of the /v0 protocol, shared by server and client."""
