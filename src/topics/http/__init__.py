"""HTTP/1.1, HTTP/2 and WebSocket server: connections and messages, without knowledge of the product."""

from topics.http.exchange import Application, Exchange
from topics.http.messages import Fault, Headers, HttpError, HttpLimits, Refusal, RequestHead
from topics.http.server import HttpServer
from topics.http.server_state import Counters
from topics.http.streaming import Stream, Upgrade
from topics.http.websocket.message_reader import Handshake, HandshakeError, read_handshake, text_frame
from topics.http.websocket.socket import Receiver, WebSocket

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
