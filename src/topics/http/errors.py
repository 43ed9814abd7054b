"""Why the HTTP layer itself refuses a request, before or instead of the application.

The application turns each refusal into an answer of its own shape (`Application.refuse`); what is decided here is only
the status, a word for programs and a sentence for people.
"""

import enum
from collections.abc import Sequence


class Fault(enum.Enum):
    """Every refusal of the HTTP layer: its status and its sentence. The member's name is the word for programs."""

    MALFORMED = 400, "this is not a valid HTTP/1.1 request"
    BAD_FRAMING = 400, "the length of the body is not clear"
    BAD_HOST = 400, "an HTTP/1.1 request has exactly one Host header"
    BAD_ENCODING = 400, "the body is not valid gzip"
    TIMEOUT = 408, "the request did not arrive in time"
    BODY_TOO_LARGE = 413, "the body is too large"
    UNSUPPORTED_ENCODING = 415, "Content-Encoding may be gzip or identity"
    EXPECTATION_FAILED = 417, "the only expectation known is 100-continue"
    HEAD_TOO_LARGE = 431, "the request head is too large"
    INTERNAL = 500, "the server failed to answer"
    UNSUPPORTED_TRANSFER_ENCODING = 501, "the only transfer encoding known is chunked"
    UNSUPPORTED_METHOD = 501, "CONNECT is not implemented"
    SHUTTING_DOWN = 503, "the server is shutting down"
    TOO_MANY_CONNECTIONS = 503, "the server has too many connections"
    TOO_MANY_BODIES = 503, "the server is receiving too much at once"
    UNSUPPORTED_VERSION = 505, "the server speaks HTTP/1.1 and HTTP/1.0"


class HttpError(Exception):
    """A refusal. `headers` belong into the answer whatever shape the application gives it; `most` is the bound that
    was met, where it is a setting."""

    def __init__(
        self, fault: Fault, message: str = "", headers: Sequence[tuple[str, str]] = (), *, most: int = 0
    ) -> None:
        super().__init__(message or fault.value[1])
        self.fault = fault
        self.headers = headers
        self.most = most

    @property
    def status(self) -> int:
        return self.fault.value[0]

    @property
    def code(self) -> str:
        return self.fault.name.lower()

    @property
    def message(self) -> str:
        return str(self.args[0])
