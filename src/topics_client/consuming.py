"""Named consumers: the calls, and the state of a loop that commits its processed items. No function here waits."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from topics_client.answers import ConsumerCommitted, ConsumerDropped, ConsumerPage, ConsumerPut, ConsumerState, Diff
from topics_client.follow import Following, Item
from topics_client.requests import Request, diff, given_only, milliseconds, named, query_of, topic_path

_WAIT_MS = 20_000
_LIMIT = 1_000
_encode = msgspec.json.Encoder().encode


def put_consumer(
    topic: str,
    name: str,
    *,
    from_seq: int = 0,
    since: datetime | str | int | None = None,
    last: int | None = None,
    streams: bool = False,
) -> Request[ConsumerPut]:
    """Creates a consumer whose cursor is `from_seq`, before the time `since`, or before the `last` records.

    An existing consumer does not change; `created` is then false.
    """
    given = {"from_seq": from_seq or None, **_place(since, last)}
    return Request(
        method="PUT", target=_path(topic, name, streams), body=_encode(given_only(given)), answer=ConsumerPut
    )


def get_consumer(topic: str, name: str, *, streams: bool = False) -> Request[ConsumerState]:
    """A consumer's cursor, its lag, and its last commit."""
    return Request(method="GET", target=_path(topic, name, streams), answer=ConsumerState)


def list_consumers(
    topic: str | None = None,
    *,
    prefix: str = "",
    page_size: int | None = None,
    cursor: str | None = None,
    streams: bool = False,
) -> Request[ConsumerPage]:
    """One page of the consumers of a topic, or of all topics whose names begin with `prefix`."""
    query: dict[str, object] = {"page_size": page_size, "cursor": cursor or None}
    if topic is None:
        target = "/v0/consumers" + query_of({"prefix": prefix or None, **query})
    else:
        target = topic_path(topic, "/consumers", {**query, "streams": "true" if streams else None})
    return Request(method="GET", target=target, answer=ConsumerPage)


def delete_consumer(topic: str, name: str, *, streams: bool = False) -> Request[ConsumerDropped]:
    """Deletes a consumer and its cursor; the records stay."""
    return Request(method="DELETE", target=_path(topic, name, streams), answer=ConsumerDropped)


def commit_consumer(
    topic: str,
    name: str,
    seq: int | None = None,
    *,
    since: datetime | str | int | None = None,
    last: int | None = None,
    force: bool = False,
    epoch: int | None = None,
    streams: bool = False,
) -> Request[ConsumerCommitted]:
    """Moves a consumer's cursor forward: everything up to `seq` is processed. A lower one changes nothing.

    With `force` the cursor may move back. Instead of a seq it may be a time, or the position before the `last` records.
    With the `epoch` of a read, a seq of an earlier topic of this name is refused with `TopicRecreated`.
    """
    given = {"seq": seq, **_place(since, last), "force": force or None, "epoch": epoch}
    target = _path(topic, name, streams, "/commit")
    return Request(method="POST", target=target, body=_encode(given_only(given)), answer=ConsumerCommitted)


def read_consumer(
    topic: str,
    name: str,
    *,
    limit: int | None = None,
    node: str | Sequence[str] | None = None,
    include_tags: bool = False,
    include_meta: bool = True,
    wait_ms: int = 0,
    max_batch_bytes: int | None = None,
    filter: str | None = None,
    streams: bool = False,
) -> Request[Diff]:
    """The records behind the committed cursor, as `diff` gives them. It commits nothing."""
    given = {
        "limit": limit,
        "node": node,
        "include_tags": include_tags or None,
        "include_meta": None if include_meta else False,
        "wait_ms": wait_ms or None,
        "max_batch_bytes": max_batch_bytes,
        "filter": filter,
    }
    target = _path(topic, name, streams, "/read")
    return Request(method="POST", target=target, body=_encode(given_only(given)), answer=Diff, wait_s=wait_ms / 1000)


def _path(topic: str, name: str, streams: bool, verb: str = "") -> str:
    query = {"streams": "true" if streams else None}
    return topic_path(topic, f"/consumers/{named(name, 'consumer')}{verb}", query)


def _place(since: datetime | str | int | None, last: int | None) -> Mapping[str, object]:
    return {"since_ts": milliseconds(since) if isinstance(since, datetime) else since, "last": last}


class Consuming:
    """The state of a consumer's loop: a follower that begins at the committed cursor, and the cursor to commit."""

    def __init__(
        self,
        topic: str,
        name: str,
        read: Mapping[str, object],
        begin: Request[ConsumerPut],
        commit_every: int,
        deadline_s: float,
        raise_on_gap: bool,
    ) -> None:
        self.topic, self.name = topic, name
        self.begin = begin
        """Creates the consumer where it does not exist, and gives its cursor."""
        self.deadline_s = deadline_s
        self.committed = -1
        """The last cursor that was committed; -1 before the loop has begun."""
        self._read = read
        self._every = commit_every
        self._raise_on_gap = raise_on_gap
        self._following: Following | None = None
        self._handed_out = 0
        self._epoch: int | None = None
        """That of the topic whose cursor was committed."""

    @property
    def began(self) -> bool:
        return self._following is not None

    def start(self, answer: ConsumerPut) -> None:
        """Begins to follow the topic behind the committed cursor."""

        def read_from(cursor: int, epoch: int | None) -> Request[Diff]:
            return diff(self.topic, cursor, epoch=epoch, **self._read)  # type: ignore[arg-type]

        self.committed, self._epoch = answer.seq, answer.epoch
        self._following = Following(
            self.topic, answer.seq, answer.epoch, read_from, endless=bool(self._read["wait_ms"]),
            raise_on_gap=self._raise_on_gap, deadline_s=self.deadline_s,
        )  # fmt: skip

    @property
    def following(self) -> Following:
        assert self._following is not None
        return self._following

    @property
    def cursor(self) -> int:
        """The seq of the last item that was handed out, or passed over with it."""
        return self.following.cursor

    @property
    def epoch(self) -> int | None:
        return self.following.epoch

    def next_item(self) -> Item | None:
        item = self.following.next_item()
        self._handed_out += item is not None
        return item

    def is_due(self, waiting: bool) -> bool:
        """Whether a commit is due. `waiting` means that no item is buffered, so a batch is complete."""
        if not self._every or (self.cursor, self.epoch) == (self.committed, self._epoch):
            return False
        return waiting or self._handed_out >= self._every

    def commit(self, seq: int) -> Request[ConsumerCommitted]:
        return commit_consumer(self.topic, self.name, seq, epoch=self.epoch)

    def recreate(self) -> Request[ConsumerPut]:
        """Creates the consumer again, which went with its topic or was deleted."""
        return put_consumer(self.topic, self.name)

    def was_committed(self, seq: int) -> None:
        self.committed, self._epoch, self._handed_out = seq, self.epoch, 0


def consumer(
    topic: str,
    name: str,
    *,
    commit_every: int = 1_000,
    from_seq: int = 0,
    since: datetime | str | int | None = None,
    last: int | None = None,
    wait_ms: int = _WAIT_MS,
    limit: int | None = _LIMIT,
    node: str | Sequence[str] | None = None,
    include_tags: bool = False,
    include_meta: bool = True,
    max_batch_bytes: int | None = None,
    filter: str | None = None,
    raise_on_gap: bool = False,
    deadline_s: float = math.inf,
) -> Consuming:
    """Iterates over all records behind the committed cursor of the consumer `name`, and yields a `Gap` for lost ones.

    The server stores the cursor, so the loop continues where the last one stopped, in any process. An item is processed
    when the next one is requested. The loop commits every `commit_every` items, when it waits for more, and at the end
    of its `with` block, without the current item if the block fails. With `commit_every=0` only `commit` commits. Items
    that were not committed are delivered again. A missing consumer is created, and begins at `from_seq`, at `since` or
    with the `last` records. The other arguments are those of `follow`.
    """
    read = {
        "wait_ms": wait_ms, "limit": limit, "node": node, "include_tags": include_tags, "include_meta": include_meta,
        "max_batch_bytes": max_batch_bytes, "filter": filter,
    }  # fmt: skip
    begin = put_consumer(topic, name, from_seq=from_seq, since=since, last=last)
    return Consuming(topic, name, read, begin, commit_every, deadline_s, raise_on_gap)
