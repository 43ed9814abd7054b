"""Watching many topics over one connection: a session made by POST, and its event stream by GET."""

import msgspec

from topics.api.auth import Key, Scope
from topics.api.calls import Call
from topics.api.errors import UnauthorizedError
from topics.api.live import Projection, Session
from topics.api.live.sessions import BEFORE_ALL
from topics.api.v0.bodies import check_number, decode_body
from topics.api.v0.watch.event_streams import check_accepts_events, start_events
from topics.api.v0.watch.watch_frames import SHARED
from topics.api.v0.watch.watch_ids import read_id
from topics.api.v0.watch.watch_stream import SoloWatchStream, WatchStream
from topics.core.errors import InvalidRequestError, TopicNotFoundError
from topics.core.limits import MAX_U64, Limits
from topics.wire.watch import WatchAnswer, WatchBody, WatchFrom, WatchPosition

_BEGINNING = WatchFrom()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WatchBody).decode


def create(call: Call) -> None:
    """Makes a session. Everything is checked while the client can still be told, before any stream."""
    body = decode_body("watch", _decode, call.exchange.body)
    live, core = call.live, call.engine.core
    projection = _projection(body, core.limits)
    _check_topics(body, call.key, live.limits.max_watch_topics)
    resumed = _resumed(body)
    live.sessions.check_room(call.key)
    lenient = call.flag("lenient", False)
    positions: dict[str, WatchPosition] = {}
    cursors: dict[str, int] = {}
    for name, start in body.topics.items():
        try:
            info = call.engine.info(name)
        except TopicNotFoundError:
            if lenient:
                continue
            raise
        asked = start or _BEGINNING
        from_seq = resumed.get(name, info.head_seq if asked.tail else asked.from_seq)
        is_other = not asked.tail and asked.epoch is not None and asked.epoch != info.epoch
        cursors[name] = BEFORE_ALL if is_other else from_seq
        positions[name] = WatchPosition(
            from_seq=from_seq, head_seq=info.head_seq, earliest_seq=info.earliest_seq, epoch=info.epoch
        )
    session = live.sessions.create(
        call.key, projection, live.limits.clamp_heartbeat_ms(body.heartbeat_ms),
        cursors,
        {name: core.by_name[name].id for name in positions},
    )  # fmt: skip
    answer = WatchAnswer(
        wid=session.wid, stream_url=f"/v0/watch/{session.wid}", session_ttl_ms=live.sessions.ttl_ms, topics=positions
    )
    call.reply(200, _encode(answer))


def stream(call: Call) -> None:
    """Opens the stream of a session."""
    head, live = call.exchange.head, call.live
    check_accepts_events(head)
    session = live.sessions.find(call.topic)
    key = live.keys.authenticate_stream(head.headers.get("authorization"), call.query.get("token"))
    if key is not session.key:
        # Another key that is valid by itself is no better than none.
        raise UnauthorizedError
    if head.method == "HEAD":
        start_events(call).close()
        return
    if session.stream is not None:
        # A client that comes back must not wait until its old connection is noticed as dead: the newest wins.
        session.stream.give_way()
    _rewind(session, head.headers.get("last-event-id"))
    session.meet_topics(call.engine)
    solo = head.http_version == "1.1" and len(session.cursors) == 1 and not session.generation
    sink = (SoloWatchStream if solo else WatchStream)(live, session, call.waits)
    sink.open(start_events(call))


def _projection(body: WatchBody, limits: Limits) -> Projection:
    check_number("watch", "limit", body.limit)
    check_number("watch", "max_batch_bytes", body.max_batch_bytes)
    check_number("watch", "heartbeat_ms", body.heartbeat_ms)
    node = body.node
    return Projection(
        framing=SHARED, nodes=() if node is None else (node,) if isinstance(node, str) else tuple(sorted(set(node))),
        include_tags=body.include_tags, include_data=body.include_data,
        # Without data nothing is left but what the server knows of a record, unless meta was asked for by name.
        include_meta=body.include_data if body.include_meta is None else body.include_meta,
        limit=limits.clamp_limit(body.limit), max_bytes=limits.clamp_batch_bytes(body.max_batch_bytes),
        strong=body.consistency == "strong",
    )  # fmt: skip


def _check_topics(body: WatchBody, key: Key, topics_max: int) -> None:
    if not body.topics:
        raise InvalidRequestError("watch field topics: name at least one", field="topics")
    if len(body.topics) > topics_max:
        raise InvalidRequestError(f"watch field topics: at most {topics_max}", field="topics", max=topics_max)
    for name, start in body.topics.items():
        key.check(Scope.READ, name)
        if start is not None:
            check_number("watch", "from_seq", start.from_seq, MAX_U64)


def _resumed(body: WatchBody) -> dict[str, int]:
    if body.cursor is None:
        return {}
    seen = read_id(body.cursor, body.topics)
    if seen is None:
        raise InvalidRequestError("watch field cursor: it is not the id of an event of these topics", field="cursor")
    return seen.cursors


def _rewind(session: Session, last_event_id: str | None) -> None:
    """Goes back to what the client has really seen. What is no id is passed over, as browsers may send anything."""
    seen = read_id(last_event_id, session.cursors) if last_event_id else None
    if seen is not None:
        session.rewind(seen.cursors, seen.generation)
