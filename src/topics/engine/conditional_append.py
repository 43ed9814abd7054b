"""Conditional appends: the expected head and the fence of a topic, also known as optimistic concurrency control.

An append may name the head that it expects, the fence token that it holds, or both. The decision uses the staged head
and the newest token, so of two concurrent appends with the same expectation the first one succeeds. A fence is
cooperative, as in S2: an append without a token is not refused.

A FENCE frame sets a token, alone or with a batch (`log.frame`). It is idempotent and atomic. The token is in the
snapshot of its topic under the name `fence`, as UTF-8. It goes with its topic.
"""

from collections.abc import Callable

from topics.engine.core import EngineCore
from topics.engine.features import Rebuild
from topics.engine.topic import Topic
from topics.engine.write_path import Change, Gate
from topics.log.commit_requests import CommitTiming
from topics.log.frame import Frame, FrameKind, decode_fence, encode_fence
from topics.model.errors import (
    FenceMismatchError,
    HeadMismatchError,
    InvalidRequestError,
    TopicNotFoundError,
    TopicsError,
)

PART_NAME = "fence"
FENCE_BYTES_MAX = 128


class FenceState:
    """The fence of one topic."""

    __slots__ = ("staged", "token")

    def __init__(self) -> None:
        self.token = ""
        """The applied token; empty without a fence."""
        self.staged: list[FenceChange] = []
        """Changes in flight, in order; decisions use the last one."""

    @property
    def newest(self) -> str:
        return self.staged[-1].token if self.staged else self.token


class FenceChange:
    """A new token in flight: with a batch (`engine.append.FrameExtension`) or alone."""

    kind = FrameKind.FENCE
    creates = False

    def __init__(self, token: str) -> None:
        self.token = token

    def staged(self, topic: Topic) -> None:
        _state(topic).staged.append(self)

    def prefix(self, topic: Topic) -> bytes:
        return encode_fence(self.token)

    def applied(self, topic: Topic) -> None:
        state = _state(topic)
        state.staged.remove(self)
        state.token = self.token

    def undone(self, topic: Topic, error: TopicsError) -> None:
        _state(topic).staged.remove(self)


class FenceFeature:
    """Implements `engine.features.Feature` for fences."""

    name = PART_NAME
    kinds = frozenset((FrameKind.FENCE,))

    def replay(self, topic: Topic, frame: Frame, rebuild: Rebuild) -> None:
        _state(topic).token = decode_fence(frame.body)[0]

    def save(self, topic: Topic) -> bytes:
        state = _found(topic)
        return state.token.encode() if state is not None else b""

    def load(self, topic: Topic, part: bytes) -> None:
        _state(topic).token = part.decode()

    def reconcile(self) -> None:
        """A fence affects one topic only."""

    def may_page_out(self, topic: Topic) -> bool:
        state = _found(topic)
        return state is None or not state.staged


class Fences:
    """Sets the fence of a topic without an append."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        core.features.add(FenceFeature())

    def set(self, topic: Topic, token: str, held: str | None, done: Callable[[str | TopicsError], None]) -> None:
        """Sets the token, always synced; an empty one removes the fence.

        `held` is a condition, as for an append; a repeated successful call passes it. Answers with the token.
        """
        core = self._core
        check_token(token)
        core.check_accepting()
        if topic.closing:
            raise TopicNotFoundError(topic.name)
        core.path.check(topic, patient=True, frees=True)
        if token != newest_fence(topic):
            check_conditions(topic, None, held)
        change = FenceChange(token)

        def applied(timing: CommitTiming) -> None:
            change.applied(topic)
            done(token)

        def failed(error: TopicsError) -> None:
            change.undone(topic, error)
            done(error)

        change.staged(topic)
        core.path.log(
            Change(core.path, topic, ((FrameKind.FENCE, encode_fence(token), b""),), applied, failed), Gate.SYNC
        )


def check_conditions(topic: Topic, expected_head_seq: int | None, fence: str | None) -> None:
    """Raises unless the topic has this fence and this head, including operations in flight.

    Single records of this tick must be staged before.
    """
    if fence is not None and fence != (newest := newest_fence(topic)):
        raise FenceMismatchError(topic.name, fence, newest)
    if expected_head_seq is not None and expected_head_seq != topic.staged_head:
        raise HeadMismatchError(topic.name, expected_head_seq, topic.staged_head)


def check_missing(name: str, expected_head_seq: int | None, fence: str | None) -> None:
    """Like `check`, for a topic that does not exist: it has no fence, and its head is 0."""
    if fence:
        raise FenceMismatchError(name, fence, "")
    if expected_head_seq:
        raise HeadMismatchError(name, expected_head_seq, 0)


def check_token(token: str) -> None:
    """Raises for a token that cannot be stored."""
    try:
        size = len(token.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError("new_fence: the text cannot be written as UTF-8", field="new_fence") from error
    if size > FENCE_BYTES_MAX:
        raise InvalidRequestError(
            f"new_fence: takes {size} bytes, at most {FENCE_BYTES_MAX} are allowed", field="new_fence",
            bytes=size, max=FENCE_BYTES_MAX,
        )  # fmt: skip


def fence_of(topic: Topic) -> str:
    """Returns a topic's applied token; empty without a fence."""
    state = _found(topic)
    return "" if state is None else state.token


def newest_fence(topic: Topic) -> str:
    """Returns the token including changes in flight."""
    state = _found(topic)
    return "" if state is None else state.newest


def _found(topic: Topic) -> FenceState | None:
    return topic.parts.get(PART_NAME) if topic.parts is not None else None  # type: ignore[return-value]


def _state(topic: Topic) -> FenceState:
    state = _found(topic)
    if state is None:
        state = FenceState()
        if topic.parts is None:
            topic.parts = {}
        topic.parts[PART_NAME] = state
    return state
