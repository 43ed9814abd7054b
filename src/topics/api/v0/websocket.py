"""The WebSocket `/v0/ws`: publishing and following over one connection.

Commands are executed and answered in order. Publishes are pipelined up to a bound, beyond which the socket is not read;
a subscribe waits for the answers of earlier publishes, so that it begins after them. All pending answers are sent
before a close by either side.

Delivery works like every live connection, see `topics.api.live`: shared frames for all sockets at the same position,
and no queues. A slow socket falls behind and continues from its cursors.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Protocol, cast

import msgspec

from topics.api.app import Call, Waiting
from topics.api.auth import ANYONE, Key, Scope, error_for
from topics.api.chunked_response import check_marked, is_heavy, preencode, read_records
from topics.api.error_responses import (
    ForbiddenError,
    PayloadTooLargeError,
    RequestTimeoutError,
    SlowConsumerError,
    UnsupportedMessageError,
    UpgradeRequiredError,
)
from topics.api.live import Frame, Live, RunQueue, Sink, Subscription
from topics.api.live.watch_sessions import BEFORE_ALL
from topics.api.v0.appends import decode_records, encode_singles, with_config_of
from topics.api.v0.websocket_messages import (
    BadCommand,
    Publish,
    Replies,
    Reply,
    SinglePublish,
    ack_befores,
    ack_frame,
    error_frame,
    find_request_id,
    names_of,
    pong_frame,
    projection_of,
    read_command,
    read_publishes,
    request_id_of,
    starts_of,
    subscribed_frame,
    unsubscribed_frame,
)
from topics.engine.coalesce import DecodedAppends
from topics.engine.engine import Engine
from topics.engine.results import AppendResult
from topics.http.messages import Fault, HttpError
from topics.http.request_body import LargeBody
from topics.http.websocket.message_reader import HandshakeError, read_handshake, text_frames
from topics.http.websocket.socket import WebSocket
from topics.model.errors import InvalidRequestError, ShuttingDownError, ThrottledError, TopicsError
from topics.model.limits import KIB, MIB
from topics.model.records import Batch, check_batch, single_record
from topics.model.topic_config import check_inline_config
from topics.system.fair_scheduler import Task, in_slices
from topics.wire.json_array_reader import LARGE_BYTES, find_array
from topics_protocol.websocket_frames import Ping, Position, RequestId, Subscribe, Unsubscribe

# Request batching of publishes. Publishes of one record that a socket sent together for one topic are a run, and the
# runs of all sockets in one tick share a block in the log. A run is decoded, stored and answered as one, so most of the
# cost of a publish is paid once for the whole run. A single publish is a run of one.

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """The sender of a run (`Session`)."""

    run_queue: RunQueue

    def give(self, run: "PublishRun", frames: bytes) -> None: ...

    def refusal(self, error: TopicsError, request_id: RequestId) -> bytes: ...

    def publish_each(self, run: "PublishRun") -> None: ...

    def fail(self) -> None: ...


class PublishRun(msgspec.Struct, eq=False):
    """The pending publishes of one socket for one topic."""

    publisher: Publisher
    commands: Sequence[SinglePublish | Publish]
    texts: Sequence[bytes]
    """The messages that the records were decoded from."""
    reply: Reply
    started: float
    nbytes: int
    """The bytes of the texts."""


class PublishBatcher:
    """The engine's `AppendSource` for publishes. Each request is the run of its record."""

    def decode(self, requests: list[PublishRun]) -> DecodedAppends:
        commands = [command for run in _runs(requests) for command in run.commands]
        keys = [command.idempotency_key for command in commands]
        return DecodedAppends.of([command.records[0] for command in commands], keys)

    def handle_each(self, requests: list[PublishRun]) -> None:
        for run in _runs(requests):
            try:
                run.publisher.publish_each(run)
            except Exception:
                _log.exception("publish failed")
                run.publisher.fail()

    def answer(self, requests: list[PublishRun], outcome: AppendResult | TopicsError) -> None:
        """Answers the publishes of one block.

        A run that cannot be answered does not block the answers of the others.
        """
        now = requests[0].publisher.run_queue.seconds()
        runs = _runs(requests)
        commands = [command for run in runs for command in run.commands]
        texts, told_seqs, at = [], all([command.return_seqs for command in commands]), 0
        if isinstance(outcome, AppendResult):
            befores = ack_befores([command.request_id for command in commands])
            texts = encode_singles(outcome, befores, [now - run.started for run in requests])
        for run in runs:
            begin, at = at, at + len(run.commands)
            try:
                if isinstance(outcome, TopicsError):
                    frames = b"".join([run.publisher.refusal(outcome, command.request_id) for command in run.commands])
                elif told_seqs or all([command.return_seqs for command in run.commands]):
                    frames = text_frames(texts[begin:at])
                else:
                    frames = b"".join(_acks(run, outcome, outcome.first_seq + begin, now))
                run.publisher.give(run, frames)
            except Exception:
                _log.exception("publish answer failed")


PUBLISH_BATCHER = PublishBatcher()
"""The only instance: the engine decodes requests with the same source together."""


def _acks(run: PublishRun, outcome: AppendResult, first_seq: int, now: float) -> Iterator[bytes]:
    """One by one, if not all of them get their seqs."""
    for seq, command in enumerate(run.commands, first_seq):
        alone = msgspec.structs.replace(outcome, first_seq=seq, last_seq=seq, head_seq=seq)
        yield ack_frame(alone, command.request_id, command.return_seqs, (now - run.started) * 1000.0)


def _runs(requests: Sequence[PublishRun]) -> Iterable[PublishRun]:
    """Returns each run once, in order. The requests contain it once for each of its records."""
    return dict.fromkeys(requests)


PUBLISHES_MAX = 64
"""The maximum number of concurrent publishes of a socket; further ones stay in the socket."""
PUBLISH_BYTES_MAX = 1024 * KIB
"""The maximum bytes of their messages in progress. One message is always accepted, however long."""
_COMMAND_BYTES_MAX = 4 * MIB
"""The length of the longest command other than a publish."""
_INTERNAL_ERROR = 1011
_TRY_AGAIN_LATER = 1013
_FORBIDDEN = 403
_topic_of = attrgetter("topic")


def open_socket(call: Call) -> None:
    """`GET /v0/ws`."""
    head = call.exchange.head
    try:
        handshake = read_handshake(head)
    except HandshakeError as error:
        if error.status == 426:
            raise UpgradeRequiredError(error.message, tuple(error.headers)) from error
        raise InvalidRequestError(error.message) from error
    leave = call.live.connections.enter(call.key)
    socket = WebSocket(call.detach(), handshake, call.key.output_account)
    strict = call.flag("strict", call.engine.limits.strict_config)
    session = Session(socket, call.engine, call.live, call.key, leave, call.waits, strict)
    session.audited = call.audited
    call.waits.add(session)
    socket.begin(session)


def _nothing() -> None:
    """Does nothing: the callback of a socket that was closed."""


class Session(Sink):
    """One socket. Implements `Receiver`, and `Waiting` for a server that stops."""

    __slots__ = (
        "_engine", "_large", "_leave", "_live", "_peer_closed", "_preparing", "_publish_bytes", "_replies", "_socket",
        "_stopping", "_strict", "_subscriptions", "_unswept", "_waiting", "_waits", "audited", "key",
    )  # fmt: skip

    def __init__(
        self, socket: WebSocket, engine: Engine, live: Live, key: Key, leave: Callable[[], None], waits: set[Waiting],
        strict: bool,
    ) -> None:  # fmt: skip
        super().__init__(live.run_queue, live.slow_limits)
        self._socket = socket
        self.push = socket.write
        self._engine = engine
        self._live = live
        self.key = key
        self._leave = leave
        self._unswept = live.sweep.add(self)
        self._subscriptions: dict[str, Subscription] = {}
        self._replies = Replies(self._send)
        self._publish_bytes = 0
        # A subscribe that waits for earlier answers. The socket is paused meanwhile, so there is only one.
        self._waiting: Subscribe | None = None
        self._peer_closed = False
        # Whether a publish of many records is being encoded. The socket is paused meanwhile, so that commands keep
        # their order.
        self._preparing = False
        # A publish too long to be read at once: its memory counts until it is answered. The socket is paused meanwhile.
        self._large: LargeBody | None = None
        self._stopping = False
        self._strict = strict
        self._waits = waits
        self.audited: Callable[[int, bool], None] | None = None
        """Called for refused operations of the key, if they are audited."""

    # Callbacks of the socket.

    def on_text(self, text: bytes) -> None:
        try:
            command = read_command(text)
        except BadCommand as bad:
            self._replies.now(error_frame(bad.cause, bad.request_id))
            return
        if isinstance(command, Publish):
            if single_record(command) is None or not self._publish_run(command.topic, (command,), (text,)):
                self._publish_bytes += len(text)
                reply, started = self._replies.later(), self.run_queue.seconds()
                if is_heavy(command.records):
                    self._preparing = True
                    self._socket.run(self._publish_in_turns(command, text, reply, started, len(text)))
                else:
                    self._publish(command, text, reply, started, len(text))
            if self._is_busy:
                self._socket.hold()
        elif isinstance(command, Subscribe):
            if self._replies:
                self._waiting = command
                self._socket.hold()
            else:
                self._subscribe(command)
        elif isinstance(command, Unsubscribe):
            self._unsubscribe(command)
        else:
            assert isinstance(command, Ping)
            self._replies.now(pong_frame(command.request_id))

    def on_large_text(self, text: LargeBody) -> None:
        if not find_array(text.view, b"records") and len(text.view) <= _COMMAND_BYTES_MAX:
            # Not a publish. Other commands are short and read at once.
            whole = bytes(text.view)
            text.release()
            self.on_text(whole)
            return
        self._publish_bytes += len(text.view)
        self._preparing = True
        self._large = text
        self._socket.hold()
        task = self._publish_large(text, len(text.view), self._replies.later(), self.run_queue.seconds())
        self._socket.run(in_slices(task, self.run_queue.seconds))

    def on_refused(self, beginning: bytes, error: HttpError) -> None:
        refused: TopicsError = ThrottledError.under_pressure(retry_after_ms=1000)
        if error.fault is Fault.BODY_TOO_LARGE:
            refused = PayloadTooLargeError(error.message)
        elif error.fault is Fault.TIMEOUT:
            refused = RequestTimeoutError(error.message)
        self._replies.now(error_frame(refused, request_id_of(beginning)))

    def on_texts(self, texts: Sequence[bytes]) -> int:
        """Handles publishes of a single record each, up to the first other command."""
        texts = texts[: max(0, PUBLISHES_MAX - len(self._replies))]
        if self._publish_bytes + sum(map(len, texts)) > PUBLISH_BYTES_MAX:
            return 0
        taken = 0
        for topic, run in groupby(read_publishes(texts), _topic_of):
            commands = list(run)
            if not self._publish_run(topic, commands, texts[taken : taken + len(commands)]):
                break
            taken += len(commands)
        if self._is_busy:
            self._socket.hold()
        return taken

    def on_binary(self, data: bytes) -> None:
        self._replies.now(error_frame(UnsupportedMessageError()))

    def on_drain(self) -> None:
        self.drained()

    def on_closing(self) -> None:
        self._peer_closed = True
        self._forget_subscriptions()
        self._resume()

    def on_disconnect(self) -> None:
        self.close()
        self._forget_subscriptions()
        self._waiting = None
        self._replies.close()
        self._waits.discard(self)
        for let_go in (self._unswept, self._leave):
            let_go()
        # Each of them references this session; the cycle is broken, so that it need not wait for the garbage collector.
        self._unswept = self._leave = _nothing

    def end(self) -> None:
        """Stops: refuses new commands and answers those in progress."""
        if not self._stopping:
            self._stopping = True
            self._send(error_frame(ShuttingDownError()))
            self._forget_subscriptions()
            self._resume()

    # Callbacks of live delivery.

    def transmit(self, subscription: Subscription, frame: Frame) -> None:
        if not self._socket.write(frame.data):
            self.filled()

    def end_subscription(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.topic) is subscription:
            del self._subscriptions[subscription.topic]

    def end_slow(self) -> None:
        self._forget_subscriptions()
        error = SlowConsumerError()
        self._send(error_frame(error))
        self._socket.close(_TRY_AGAIN_LATER, error.message)

    def waiting_bytes(self) -> int:
        return self._socket.buffered_bytes

    def frame_room(self) -> int:
        return self._socket.room()

    # Commands.

    def _publish(self, command: Publish, text: bytes, reply: Reply, started: float, nbytes: int) -> None:
        """Executes a publish whose answer and bytes are reserved."""
        try:
            if command.config is not None and self._strict:
                check_inline_config(text)
            self._check(Scope.WRITE if command.config is None else Scope.WRITE | Scope.ADMIN, command.topic)
            batch: Batch = command
            if self.key is not ANYONE and command.config is not None:
                batch = with_config_of(self.key, self._engine, command.topic, batch)
            done = partial(self._published, command, nbytes, reply, started)
            self._engine.append(command.topic, batch, done)
        except TopicsError as error:
            self._published(command, nbytes, reply, started, error)

    def _publish_in_turns(self, command: Publish, text: bytes, reply: Reply, started: float, nbytes: int) -> Task:
        """Executes a publish of many records, which are checked and encoded in portions first.

        `text` is the message of `nbytes` bytes, without its records if it was long.
        """
        try:
            self._check(Scope.WRITE, command.topic)
            check_batch(command.records, self._engine.limits, command.node, command.idempotency_key)
            records = yield from preencode(self._engine, command.topic, command.records, command.node, checks=True)
            self._publish(msgspec.structs.replace(command, records=records), text, reply, started, nbytes)
        except TopicsError as error:
            self._published(command, nbytes, reply, started, error)
        except Exception:
            _log.exception("publish failed")
            self.fail()
        finally:
            self._preparing = False
        self._resume()

    def _publish_large(self, large: LargeBody, nbytes: int, reply: Reply, started: float) -> Task:
        """Executes a publish that is too long to be read at once."""
        view, request_id = large.view, cast("RequestId", None)
        try:
            rest, records = yield from read_records(large, "publish", self._engine.limits, decode_records)
            command = read_command(rest)
            view, request_id = memoryview(b""), command.request_id
            if not isinstance(command, Publish):
                raise InvalidRequestError(f"a message of more than {_COMMAND_BYTES_MAX} bytes is a publish")
            check_marked("publish", command.records, records)
            yield from self._publish_in_turns(
                msgspec.structs.replace(command, records=records), rest, reply, started, nbytes
            )
        except BadCommand as bad:
            self._refuse_publish(nbytes, reply, bad.cause, bad.request_id)
        except TopicsError as error:
            if view:
                request_id = yield from find_request_id(view)
            self._refuse_publish(nbytes, reply, error, request_id)
        except Exception:
            _log.exception("publish failed")
            self.fail()
        finally:
            self._preparing = False
        self._resume()

    def _refuse_publish(self, nbytes: int, reply: Reply, error: TopicsError, request_id: RequestId) -> None:
        self._release_bytes(nbytes)
        self._replies.give(reply, self.refusal(error, request_id))
        self._resume()

    def _published(
        self, command: Publish, nbytes: int, reply: Reply, started: float, outcome: AppendResult | TopicsError
    ) -> None:
        self._release_bytes(nbytes)
        if isinstance(outcome, TopicsError):
            frame = self.refusal(outcome, command.request_id)
        else:
            spent_ms = (self.run_queue.seconds() - started) * 1000.0
            frame = ack_frame(outcome, command.request_id, command.return_seqs, spent_ms)
        self._replies.give(reply, frame)
        self._resume()

    def _release_bytes(self, nbytes: int) -> None:
        """Records the answer to a publish of this many bytes."""
        self._publish_bytes -= nbytes
        if nbytes > LARGE_BYTES and self._large is not None:
            self._large.release()
            self._large = None

    def _check(self, scopes: Scope, topic: str) -> None:
        """Returns whether a publish may be executed now."""
        if self.key is not ANYONE:
            self.key.check(scopes, topic)
        if self._stopping:
            raise ShuttingDownError()

    def _publish_run(self, topic: str, commands: Sequence[SinglePublish | Publish], texts: Sequence[bytes]) -> bool:
        """Batches one or several publishes of a single record each with the others of their tick.

        Returns False without effect if each must be executed separately.
        """
        try:
            self._check(Scope.WRITE, topic)
        except TopicsError:
            return False
        reply, nbytes = self._replies.later(len(commands)), sum(map(len, texts))
        run = PublishRun(self, commands, texts, reply, self.run_queue.seconds(), nbytes)
        if not self._engine.append_requests(topic, [run] * len(commands), PUBLISH_BATCHER):
            self._replies.withdraw(reply)
            return False
        self._publish_bytes += nbytes
        return True

    def publish_each(self, run: PublishRun) -> None:
        """Executes the publishes of a run one by one."""
        for text, reply in zip(run.texts, self._replies.part(run.reply), strict=True):
            command = read_command(text)
            assert isinstance(command, Publish)
            self._publish(command, text, reply, run.started, len(text))

    def fail(self) -> None:
        """Releases publishes that will never be answered."""
        self._socket.close(_INTERNAL_ERROR, "the server made a mistake; it is in its log")

    def give(self, run: PublishRun, frames: bytes) -> None:
        """Returns the answers to a run."""
        self._publish_bytes -= run.nbytes
        self._replies.give(run.reply, frames)
        self._resume()

    @property
    def _is_busy(self) -> bool:
        many = len(self._replies) >= PUBLISHES_MAX or self._publish_bytes >= PUBLISH_BYTES_MAX
        return many or self._preparing

    def _subscribe(self, command: Subscribe) -> None:
        try:
            self._replies.now(self._follow(command))
        except TopicsError as error:
            self._replies.now(self.refusal(error, command.request_id))

    def refusal(self, error: TopicsError, request_id: RequestId) -> bytes:
        if self.audited is not None and isinstance(error, ForbiddenError):
            self.audited(_FORBIDDEN, False)
        return error_frame(error_for(self.key, error), request_id)

    def _follow(self, command: Subscribe) -> bytes:
        """Checks all topics before it starts any: a refused command has no effect."""
        starts = starts_of(command)
        projection = projection_of(command, self._engine.limits)
        for name in starts:
            self.key.check(Scope.READ, name)
        if self._stopping:
            raise ShuttingDownError()
        self._check_room(starts)
        infos = {name: self._engine.info(name) for name in starts}
        positions: dict[str, Position] = {}
        existing = self._engine.existing
        for name, start in starts.items():
            info = infos[name]
            from_seq = info.head_seq if start.tail else start.from_seq
            is_other = not start.tail and start.epoch is not None and start.epoch != info.epoch
            self._stop_following(name)
            cursor = BEFORE_ALL if is_other else from_seq
            self._subscriptions[name] = self._live.feeds.subscribe(self, existing(name), projection, cursor)
            positions[name] = Position(
                from_seq=from_seq, head_seq=info.head_seq, earliest_seq=info.earliest_seq, epoch=info.epoch
            )
        return subscribed_frame(command.request_id, positions)

    def _check_room(self, names: Iterable[str]) -> None:
        maximum = self._live.limits.max_watch_topics
        if len({*self._subscriptions, *names}) > maximum:
            raise InvalidRequestError(
                f"subscribe: a socket follows at most {maximum} topics", field="topics", max=maximum
            )

    def _unsubscribe(self, command: Unsubscribe) -> None:
        try:
            names = names_of(command)
        except TopicsError as error:
            self._replies.now(error_frame(error, command.request_id))
            return
        known = [name for name in names if self._stop_following(name)]
        self._replies.now(unsubscribed_frame(command.request_id, known))

    def _stop_following(self, name: str) -> bool:
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            subscription.cancel()
        return subscription is not None

    # Helpers.

    def _send(self, frame: bytes) -> None:
        self.sent = True
        if not self._socket.write(frame):
            self.filled()

    def _resume(self) -> None:
        """Continues the commands that waited for an answer."""
        if self._replies:
            if not self._is_busy and self._waiting is None:
                self._socket.release()
            return
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._subscribe(waiting)
        if self._peer_closed:
            self._socket.finish()
        elif self._stopping:
            self._socket.close()
        else:
            self._socket.release()

    def _forget_subscriptions(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.cancel()
        self._subscriptions.clear()
