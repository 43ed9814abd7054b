"""WebSocket connections on the `websockets` library: the handshake, message reading, and a socket to write to."""
