"""What is wrong with what a client of HTTP/2 sent, and how much of its connection ends by that."""

from h2.errors import ErrorCodes


class ConnectionFault(Exception):
    """The connection ends, and is told why."""

    def __init__(self, code: ErrorCodes, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamFault(Exception):
    """One request is no request; the others of its connection go on."""
