"""From the text of a message to a command that may be carried out.

A message that is no command is answered by an error and the socket lives on: `invalid_json` where it is no JSON object
with a known `op`, `invalid_request` where the `op` is known and something in it is wrong. The `request_id` is repeated
wherever it can be made out.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from topics.api.errors import InvalidJsonError
from topics.api.live import Projection
from topics.api.v0.bodies import check_number
from topics.api.v0.ws.ws_framing import WS_FRAMING
from topics.core.errors import InvalidRequestError, TopicsError, quoted
from topics.core.limits import MAX_U64, Limits
from topics.core.records import Record
from topics.wire.ws import COMMANDS, Command, RequestId, Subscribe, SubscribeFrom, Unsubscribe

REQUEST_ID_CHARS_MAX = 256
_DEFAULT_LIMIT = 1000
_decode: "msgspec.json.Decoder[Command]" = msgspec.json.Decoder(Command)


class LonePublish(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, tag_field="op", tag="publish"
):
    """A publish of one record that asks for nothing more, except perhaps for a key, as `appends.LoneBody` is."""

    topic: str
    records: tuple[Record]
    request_id: Annotated[str, msgspec.Meta(max_length=REQUEST_ID_CHARS_MAX)] | int | None = None
    return_seqs: bool = True
    idempotency_key: str | None = None
    idempotency_check: bool = False
    create: bool | None = None


_decode_lone = msgspec.json.Decoder(LonePublish).decode


class _Envelope(msgspec.Struct):
    """What every command has, whatever else is wrong with it."""

    op: Any = None
    request_id: Any = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


class BadCommand(Exception):
    """A message that is no command. `cause` says why."""

    def __init__(self, cause: TopicsError, request_id: RequestId) -> None:
        super().__init__(cause)
        self.cause = cause
        self.request_id = request_id


def read_command(text: bytes) -> Command:
    """Raises `BadCommand`."""
    try:
        command = _decode.decode(text)
    except (ValueError, RecursionError) as error:
        raise _explain(text, error) from error
    request_id = command.request_id
    if isinstance(request_id, str) and len(request_id) > REQUEST_ID_CHARS_MAX:
        refusal = InvalidRequestError(
            f"field request_id: at most {REQUEST_ID_CHARS_MAX} characters", field="request_id", max=REQUEST_ID_CHARS_MAX
        )
        raise BadCommand(refusal, None)
    return command


def read_publishes(texts: Sequence[bytes]) -> list[LonePublish]:
    """The commands of the first of these texts, as far as each publishes a single record. `read_command` reads the same
    in each of them, and tells what is wrong with another."""
    publishes: list[LonePublish] = []
    try:
        # Those before one that is refused stay in the list.
        publishes.extend(map(_decode_lone, texts))
    except (ValueError, RecursionError):
        pass
    return publishes


def _explain(text: bytes, error: Exception) -> BadCommand:
    try:
        envelope = _decode_envelope(text)
    except (ValueError, RecursionError) as reason:
        return BadCommand(InvalidJsonError(f"the message is not a JSON object: {_plain(reason)}"), None)
    request_id = envelope.request_id
    if (
        not isinstance(request_id, str | int)
        or isinstance(request_id, bool)
        or len(str(request_id)) > REQUEST_ID_CHARS_MAX
    ):
        request_id = None
    op = envelope.op
    if op not in COMMANDS:
        shown = quoted(op) if isinstance(op, str) else "missing or not a string"
        return BadCommand(InvalidJsonError(f"the op is {shown}; known are {', '.join(COMMANDS)}"), request_id)
    return BadCommand(InvalidRequestError.from_decode(str(op), error), request_id)


def _plain(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def starts_of(command: Subscribe) -> dict[str, SubscribeFrom]:
    """Where to begin with each topic of a command. Raises `InvalidRequestError`."""
    starts = {name: start or SubscribeFrom() for name, start in command.topics.items()}
    if command.topic is not None:
        starts[command.topic] = SubscribeFrom(from_seq=command.from_seq, tail=command.tail, epoch=command.epoch)
    if not starts:
        raise InvalidRequestError("subscribe: name a topic, or several in topics", field="topics")
    for start in starts.values():
        check_number("subscribe", "from_seq", start.from_seq, MAX_U64)
    return starts


def projection_of(command: Subscribe, limits: Limits) -> Projection:
    """What of the records is wanted, and how much at once. Raises `InvalidRequestError`."""
    check_number("subscribe", "limit", command.limit)
    check_number("subscribe", "max_batch_bytes", command.max_batch_bytes)
    node = command.node
    return Projection(
        framing=WS_FRAMING,
        nodes=() if node is None else (node,) if isinstance(node, str) else tuple(sorted(set(node))),
        include_tags=command.include_tags, include_data=command.include_data,
        include_meta=command.include_data if command.include_meta is None else command.include_meta,
        limit=limits.clamp_limit(command.limit or _DEFAULT_LIMIT),
        max_bytes=limits.clamp_batch_bytes(command.max_batch_bytes),
    )  # fmt: skip


def names_of(command: Unsubscribe) -> list[str]:
    """Which topics are meant. Raises `InvalidRequestError`."""
    names = list(dict.fromkeys([*([] if command.topic is None else [command.topic]), *command.topics]))
    if not names:
        raise InvalidRequestError("unsubscribe: name a topic, or several in topics", field="topic")
    return names
