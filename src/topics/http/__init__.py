"""HTTP/1.1 on httptools: it knows connections and messages, and nothing of the product."""

from topics.http.application import Application
from topics.http.errors import Fault, HttpError
from topics.http.exchange import Exchange
from topics.http.headers import Headers
from topics.http.hub import Counters
from topics.http.limits import HttpLimits
from topics.http.messages import Refusal, RequestHead
from topics.http.server import HttpServer
from topics.http.streams import Stream, Upgrade
from topics.http.websocket.handshake import Handshake, HandshakeError, read_handshake
from topics.http.websocket.socket import Receiver, WebSocket
from topics.http.websocket.text_frames import text_frame

__all__ = [
    "Application",
    "Counters",
    "Exchange",
    "Fault",
    "Handshake",
    "HandshakeError",
    "Headers",
    "HttpError",
    "HttpLimits",
    "HttpServer",
    "Receiver",
    "Refusal",
    "RequestHead",
    "Stream",
    "Upgrade",
    "WebSocket",
    "read_handshake",
    "text_frame",
]
