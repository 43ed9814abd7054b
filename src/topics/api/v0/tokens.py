"""Short-lived tokens, for pages: their event streams and WebSockets can send nothing but a URL."""

import msgspec

from topics.api.calls import Call
from topics.api.v0.bodies import decode_body
from topics.core.errors import InvalidRequestError, TopicsError
from topics.wire.v0 import TokenAnswer, TokenBody

TTL_MS_MAX = 3_600_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TokenBody).decode


def create_token(call: Call) -> None:
    """A token with the rights of the key that asks, and with its limits: what is done with it counts for the key."""
    body = call.exchange.body
    asked = decode_body("token", _decode, body) if body else TokenBody()
    if not 1 <= asked.ttl_ms <= TTL_MS_MAX:
        raise InvalidRequestError(f"token field ttl_ms: must be from 1 to {TTL_MS_MAX}", field="ttl_ms")
    tokens = call.live.keys.tokens
    if tokens is None:
        raise TopicsError("this server was made without tokens")
    token, expires_ms = tokens.issue(call.key, asked.ttl_ms)
    answer = TokenAnswer(token=token, expires_ms=expires_ms)
    call.reply(200, _encode(answer), headers=(("cache-control", "no-store"),))
