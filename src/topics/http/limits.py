"""What one connection, and all of them together, may cost. Every limit of the HTTP layer has its home here."""

import msgspec

KIB = 1024
MIB = 1024 * KIB


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds and are kept by one coarse sweep, so each may run over by one period of it."""

    # The head of a request: request line and headers.
    head_bytes: int = 16 * KIB
    headers_count: int = 100
    # From the first byte of a head to its end, however steadily the bytes drip in.
    head_timeout_s: float = 60.0

    # The largest body whatever the application allows; the application chooses a limit up to it for each request.
    body_bytes: int = 64 * MIB
    # All bodies that are being received at this moment. It is what makes many large uploads at once bounded. A body is
    # there twice while it is made whole, and a few times while it is logged, so memory grows by about twice as much.
    bodies_bytes: int = 256 * MIB
    # The longest time for so many bytes of a body, or for its end: one that drips in must not hold its place for ever.
    body_idle_timeout_s: float = 30.0
    body_step_bytes: int = KIB
    # A compressed body may grow by this factor; up to `inflate_free_bytes` by any factor, as small texts compress well.
    inflate_ratio: int = 200
    inflate_free_bytes: int = MIB

    # How long the loop looks for the next request before it sleeps, while they come that densely
    # (`http.adaptive_spin`).
    awake_s: float = 0.0

    # The handshake of TLS, where there is one.
    handshake_timeout_s: float = 10.0

    # A connection between two requests.
    keep_alive_s: float = 75.0
    connections_max: int = 20_000
    # Requests of one connection that may be under way at once; the next ones stay in the socket.
    pipeline_depth: int = 16

    # HTTP/2, from a client that begins with it. Its connections have all the limits above, and each of its streams
    # those of a request; what a connection may do that HTTP/1.1 has no words for is bounded by these.
    http2: bool = True
    # Streams of one connection that may be open at once; the next ones are refused.
    http2_streams: int = 100
    # What a client may send of one body, and of all bodies of a connection, before it is told that they were taken.
    http2_stream_window_bytes: int = MIB
    http2_window_bytes: int = 4 * MIB
    # How many frames of a kind that makes work and says nothing may come at once, and how many more a second: resets,
    # and everything else that is no request, body or answer (`http.h2.floods`).
    http2_resets: int = 200
    http2_resets_per_s: int = 20
    http2_idle_frames: int = 1000
    http2_idle_frames_per_s: int = 100

    # What all clients together may leave unread: the fuller it is, the shorter are the answers.
    unread_bytes: int = 256 * MIB
    # Bytes a client may leave unread before no more of its requests are read.
    write_buffer_bytes: int = 256 * KIB
    # The longest time in which a client with a full buffer may read nothing.
    write_idle_timeout_s: float = 60.0
    # The longest message of a WebSocket: it is read in one go.
    message_bytes: int = 4 * MIB
    # A WebSocket that is quiet for the first time is sent a ping, and cut off when it stays quiet for the second.
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    # Answers from this size on are compressed for clients that accept it; larger ones than the second on a thread.
    gzip_min_bytes: int = KIB
    gzip_inline_bytes: int = 128 * KIB

    # The rest of a refused request: up to this size it is read and dropped and the connection lives on.
    discard_bytes: int = 64 * KIB
    # When the connection ends instead, how much and how long is read on, so that the answer is not lost to a reset.
    linger_bytes: int = 8 * MIB
    linger_timeout_s: float = 5.0

    @property
    def sweep_s(self) -> float:
        """The period of the sweep: a quarter of the shortest time, and at most a second for the Date header."""
        shortest = min(
            self.head_timeout_s,
            self.body_idle_timeout_s,
            self.keep_alive_s,
            self.write_idle_timeout_s,
            self.linger_timeout_s,
            self.ping_interval_s,
            self.ping_timeout_s,
        )
        return min(1.0, shortest / 4)
