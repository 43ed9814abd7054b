"""A session over a WebSocket: commands, pending answers, and resumption after a disconnect. No function here waits.

Commands are numbered and stay here until they are answered. After a disconnect the subscriptions resume from their
cursors, and then the unanswered commands are sent again in their order. A publish has an idempotency key, so it is not
executed twice.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from topics_client.answers import Appended
from topics_client.errors import ApiError, ClientError, ConnectionFailed, ShuttingDown, TopicNotFound, refusal
from topics_client.inbox import Inbox, TombstoneMessage
from topics_client.requests import Request, given_only
from topics_client.retry import new_key
from topics_client.system import Entropy, logger
from topics_client.watch import Topics, expected_epochs, starts_of
from topics_protocol.records import Record

_STATUS_UNKNOWN = 0

_encode = msgspec.json.Encoder().encode


class WsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a socket behaves."""

    raise_on_gap: bool
    deadline_s: float


class Command(msgspec.Struct, eq=False):
    """An unanswered command. `done` is called with the answer or the error."""

    text: str
    done: Callable[[Any], None]
    repeatable: bool = True
    topics: tuple[str, ...] = ()
    """The topics of a subscribe."""
    resumes: bool = False
    """Whether it is our own, to take a subscription up again."""
    expected: Mapping[str, int] = {}
    """The epochs that were said with its cursors."""


class _Frame(msgspec.Struct, kw_only=True):
    """Any frame of the server, with the fields that a client uses."""

    op: str
    request_id: int | None = None
    topic: str = ""
    code: str = ""
    message: str = ""
    detail: dict[str, Any] | None = None
    topics: Any = None
    records: list[Record] = []
    to_seq: int = 0
    head_seq: int = 0


_decode = msgspec.json.Decoder(_Frame).decode
_decode_tombstone = msgspec.json.Decoder(TombstoneMessage).decode
_decode_appended = msgspec.json.Decoder(Appended).decode


class WsSession:
    """The state of a socket, used by both clients."""

    def __init__(self, entropy: Entropy, *, idempotent: bool, raise_on_gap: bool) -> None:
        self.inbox = Inbox(raise_on_gap)
        self._entropy = entropy
        self._idempotent = idempotent
        self._last_id = 0
        self._commands: dict[int, Command] = {}
        # How each topic is followed: the fields of its subscribe besides where to begin.
        self._options: dict[str, dict[str, object]] = {}

    @property
    def owed(self) -> int:
        """The commands that are not answered."""
        return len(self._commands)

    # Commands. Each returns the text to send.

    def publish(self, append: Request[Appended], done: Callable[[Any], None]) -> str:
        """The fields of an append over HTTP; its body is an object, before whose fields a few more are inserted."""
        assert append.body is not None
        path, _, query = append.target.partition("?")
        fields: dict[str, object] = {"topic": unquote(path.rpartition("/")[2]), "return_seqs": not query}
        repeatable = append.repeatable
        if append.needs_key and self._idempotent:
            fields["idempotency_key"] = new_key(self._entropy).decode()
            fields["idempotency_check"] = True
            repeatable = True
        return self._command("publish", fields, done, repeatable=repeatable, rest="," + append.body.decode()[1:])

    def subscribe(self, topics: Topics, options: Mapping[str, object], done: Callable[[Any], None]) -> str:
        starts = starts_of(topics)
        given = given_only(options)
        for topic in starts:
            self._options[topic] = given
        expected = expected_epochs(starts)
        return self._command("subscribe", {**given, "topics": starts}, done, topics=tuple(starts), expected=expected)

    def unsubscribe(self, topics: Sequence[str], done: Callable[[Any], None]) -> str:
        for topic in topics:
            self._options.pop(topic, None)
            self.inbox.forget(topic)
        return self._command("unsubscribe", {"topics": list(topics)}, done)

    def ping(self, done: Callable[[Any], None]) -> str:
        return self._command("ping", {}, done)

    def _command(
        self, op: str, fields: Mapping[str, object], done: Callable[[Any], None], *, repeatable: bool = True,
        topics: tuple[str, ...] = (), resumes: bool = False, rest: str = "}",
        expected: Mapping[str, int] | None = None,
    ) -> str:  # fmt: skip
        self._last_id += 1
        head = _encode({"op": op, "request_id": self._last_id, **fields}).decode()
        command = Command(head[:-1] + rest, done, repeatable, topics, resumes, expected or {})
        self._commands[self._last_id] = command
        return command.text

    # Incoming messages.

    def take(self, text: str | bytes) -> bool:
        """Reads a frame, and returns whether the connection is usable: one that ends immediately is not. Raises
        `ConnectionFailed` for an invalid frame."""
        try:
            frame = _decode(text)
            if frame.op == "tombstone":
                if frame.topic in self._options:
                    self.inbox.tombstone(_decode_tombstone(text))
                return True
            answer: Any = _decode_appended(text) if frame.op == "ack" else None
        except (ValueError, RecursionError) as error:
            raise ConnectionFailed(f"a frame cannot be understood: {error}", maybe_done=True) from error
        if frame.op in ("ack", "pong", "subscribed", "unsubscribed") or frame.request_id is not None:
            self._answered(frame, answer)
        elif frame.op == "error" and not frame.topic:
            # The server is about to close or could not read the request; the next message has the reason.
            logger(__name__).info("error from the server on a WebSocket: %s (%s)", frame.message, frame.code)
            return False
        elif frame.topic in self._options:
            self._deliver(frame)
        return True

    def _deliver(self, frame: _Frame) -> None:
        topic = frame.topic
        match frame.op:
            case "record":
                self.inbox.records(topic, frame.records, frame.to_seq)
            case "caught_up":
                self.inbox.caught_up(topic, frame.head_seq)
            case "topic_deleted":
                self._options.pop(topic, None)
                self.inbox.gone(topic, frame.head_seq)
            case "error":
                self._options.pop(topic, None)
                self.inbox.failed(topic, _refusal(frame))
            case _:
                # A newer server knows more frames.
                pass

    def _answered(self, frame: _Frame, answer: Any) -> None:
        command = self._commands.pop(frame.request_id or 0, None)
        if command is None:
            return
        if frame.op == "error":
            self._refused(frame, command)
        elif frame.op == "subscribed":
            for topic, position in frame.topics.items():
                if not command.resumes:
                    # From here on it is followed anew, also if it was followed before.
                    self.inbox.forget(topic)
                self.inbox.begin(topic, position["from_seq"], position.get("epoch"), command.expected.get(topic))
            command.done(frame.topics)
        else:
            command.done(frame.topics if answer is None else answer)

    def _refused(self, frame: _Frame, command: Command) -> None:
        error = _refusal(frame)
        if isinstance(error, ShuttingDown) and command.repeatable:
            # It certainly was not carried out. The server that comes next will do it.
            self._commands[frame.request_id or 0] = command
            return
        for topic in command.topics:
            self._options.pop(topic, None)
            if not command.resumes:
                continue
            if isinstance(error, TopicNotFound):
                # It was deleted while no client was connected.
                self.inbox.gone(topic, 0)
            else:
                self.inbox.failed(topic, error)
        command.done(error)

    # Breaks.

    def resume(self) -> list[str]:
        """The commands to send on a new connection, in this order."""
        old, self._commands = self._commands, {}
        asked = {topic for command in old.values() if not command.resumes for topic in command.topics}
        texts = []
        for topic, options in self._options.items():
            if topic in self.inbox.received and topic not in asked:
                starts = {"topic": topic, **self.inbox.start(topic)}
                texts.append(self._command("subscribe", {**options, **starts}, _nobody, topics=(topic,), resumes=True))
        for number, command in sorted(old.items()):
            if not command.resumes:
                self._commands[number] = command
                texts.append(command.text)
        return texts

    def broke(self) -> None:
        """Handles the end of the connection: commands that must not be sent twice fail."""
        for number, command in list(self._commands.items()):
            if not command.repeatable:
                del self._commands[number]
                command.done(ConnectionFailed("the connection broke before the answer", maybe_done=True))

    def give_up(self, error: ClientError) -> None:
        """There will be no other connection."""
        commands, self._commands = self._commands, {}
        for command in commands.values():
            command.done(error)


def _nobody(answer: object) -> None:
    """Ignores the answer to a resumed subscription: the inbox has the state."""


def _refusal(frame: _Frame) -> ApiError:
    detail = frame.detail or {}
    wait_ms = detail.get("retry_after_ms")
    wait_s = wait_ms / 1000 if isinstance(wait_ms, int | float) else None
    return refusal(_STATUS_UNKNOWN, frame.code, frame.message, detail, wait_s)


def ws(*, raise_on_gap: bool = False, deadline_s: float = math.inf) -> WsOptions:
    """Returns a WebSocket to publish and to follow topics; it connects with its first call.

    A broken connection is retried for `deadline_s`, by default indefinitely: subscriptions resume, and unanswered
    commands are sent again without executing twice. With `raise_on_gap` lost records are raised as a `GapError`.
    """
    return WsOptions(raise_on_gap=raise_on_gap, deadline_s=deadline_s)


def subscription_options(
    *,
    node: str | Sequence[str] | None = None,
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    include_tags: bool = False,
    include_meta: bool | None = None,
    include_data: bool = True,
) -> dict[str, object]:
    """The fields of a subscribe besides its topics."""
    return {
        "node": node,
        "limit": limit,
        "max_batch_bytes": max_batch_bytes,
        "include_tags": include_tags or None,
        "include_meta": include_meta,
        "include_data": None if include_data else False,
    }
