"""WebSockets on the `websockets` library: the handshake, messages out of frames, and a socket to write to."""
