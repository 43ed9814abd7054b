"""Every subscription, and the changes that are kept of them."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec

from topics.core.errors import TopicsError
from topics.engine.engine import Engine
from topics.streams.offsets import START, decode_offset
from topics.streams.subscriptions.model import Link, Owner, Subscription, SubscriptionRequest
from topics.streams.subscriptions.signing import SEED_BYTES, Signer
from topics.streams.subscriptions.store import Store

Outcome = Callable[[TopicsError | None], None]
Change = dict[str, object]

_REWRITE_AT = 1000
_ACKS_TOGETHER = 500
"""Places in streams that one change keeps: a record for each of ten thousand would hold the loop for long."""


class Book:
    def __init__(self, engine: Engine) -> None:
        self._core = engine.core
        self._store = Store(engine)
        self._signer: Signer | None = None
        self._seed = b""
        self._key_kept = False
        self.all: dict[str, Subscription] = {}
        self._of_owner: Counter[Owner] = Counter()
        self._under_way: dict[int, Sequence[Change]] = {}
        """Changes that are on their way to the disk, in their order: nothing that is in memory knows of them yet."""
        self._writes = 0
        self._rewriting = False
        for change in self._store.load():
            self._replay(change)

    @property
    def signer(self) -> Signer:
        """The key that signs. It is made when it is first needed and kept with the first subscription."""
        if self._signer is None:
            self._seed = self._core.dice.token(SEED_BYTES)
            self._signer = Signer(self._seed)
        return self._signer

    def add(self, subscription: Subscription) -> None:
        self.all[subscription.id] = subscription
        self._of_owner[subscription.owner or ()] += 1

    def remove(self, subscription: Subscription | None) -> None:
        """Removes a subscription, if there is one."""
        if subscription is not None:
            del self.all[subscription.id]
            self._of_owner[subscription.owner or ()] -= 1

    def count_of(self, owner: Owner) -> int:
        """How many an owner has."""
        return self._of_owner[owner]

    def mark(self, text: str) -> str:
        """A word that only this server can have made of a text."""
        return self.signer.mark(text)

    def write(self, changes: Sequence[Change], done: Outcome) -> None:
        """Keeps some changes, all of them or none. `done` is told once they are safe."""
        if not self._key_kept:
            changes = [self._key(), *changes]

        self._writes += 1
        number = self._writes
        self._under_way[number] = changes

        def written(error: TopicsError | None) -> None:
            self._key_kept = self._key_kept or error is None
            try:
                done(error)
            finally:
                del self._under_way[number]

        try:
            self._store.write(changes, written)
        except TopicsError:
            self._under_way.pop(number, None)
            raise
        live = len(self.all) + sum(len(one.links) + len(one.left_out) for one in self.all.values())
        if self._store.size > _REWRITE_AT + 4 * live and not self._rewriting:
            self._rewrite()

    def _rewrite(self) -> None:
        """Puts the state in the place of the changes that led to it, and behind it once more those that are on their
        way: they are in no state yet, and what they say would go with all that stands before it."""
        self._rewriting = True

        def rewritten() -> None:
            self._rewriting = False

        self._store.rewrite([*self._state(), *chain.from_iterable(self._under_way.values())], rewritten)

    def _replay(self, change: dict[str, Any]) -> None:
        op = change["op"]
        if op == "key":
            self._seed, self._key_kept = b64decode(change["seed"]), True
            self._signer = Signer(self._seed)
        elif op == "put":
            request = msgspec.convert(change["request"], SubscriptionRequest)
            owner = change.get("owner")
            made = Subscription(
                change["id"], request, change["base_url"], change["created_ms"], None if owner is None else tuple(owner)
            )
            made.generation = change.get("generation", 0)
            made.links = {name: Link(explicit=True) for name in request.streams}
            self.remove(self.all.get(made.id))
            self.add(made)
        elif op == "drop":
            self.remove(self.all.get(change["id"]))
        elif (known := self.all.get(change["id"])) is not None:
            _change(known, op, change)

    def _key(self) -> Change:
        _ = self.signer
        return {"op": "key", "seed": b64encode(self._seed).decode()}

    def _state(self) -> list[Change]:
        """Everything there is, as the fewest changes that lead to it."""
        state = [self._key()]
        for one in self.all.values():
            state.append({**put_change(one), "generation": one.generation})
            # What was named at first may have been taken out since.
            state += [unlink_change(one, name, 0) for name in one.request.streams if name not in one.links]
            one.left_out = {name: epoch for name, epoch in one.left_out.items() if self._is_there(name, epoch)}
            state += [unlink_change(one, name, epoch) for name, epoch in one.left_out.items()]
            state.append(link_change(one, [name for name, link in one.links.items() if link.explicit]))
            state += ack_changes(one, {name: link.acked for name, link in one.links.items()})
        return state

    def _is_there(self, name: str, epoch: int) -> bool:
        topic = self._core.glance(name)
        return topic is not None and topic.epoch == epoch


def _change(subscription: Subscription, op: str, change: dict[str, Any]) -> None:
    links, left_out = subscription.links, subscription.left_out
    if op == "generation":
        subscription.generation = change["generation"]
    elif op == "ack":
        _acked(subscription, change["path"], change["offset"])
    elif op == "acks":
        for path, offset in change["offsets"].items():
            _acked(subscription, path, offset)
    elif op == "link":
        for path in change["paths"]:
            left_out.pop(path, None)
            links.setdefault(path, Link(explicit=True)).explicit = True
    elif op == "unlink":
        links.pop(change["path"], None)
        # Of before epochs were kept, nobody knows which stream was meant.
        if epoch := change.get("epoch", 0):
            left_out[change["path"]] = epoch


def _acked(subscription: Subscription, path: str, offset: str) -> None:
    out = subscription.left_out.get(path)
    if out is not None and decode_offset(offset)[0] == out:
        # It was taken out while this was on its way.
        return
    subscription.left_out.pop(path, None)
    subscription.links.setdefault(path, Link(explicit=False)).acked = offset


def put_change(subscription: Subscription) -> Change:
    return {
        "op": "put", "id": subscription.id, "base_url": subscription.base_url, "created_ms": subscription.created_ms,
        "request": subscription.request, "owner": subscription.owner,
    }  # fmt: skip


def drop_change(subscription: Subscription) -> Change:
    return {"op": "drop", "id": subscription.id}


def ack_changes(subscription: Subscription, offsets: dict[str, str]) -> list[Change]:
    """How far some streams are acknowledged. Where that is the start there is nothing to keep."""
    moved = [(name, offset) for name, offset in offsets.items() if offset != START]
    if len(moved) == 1:
        return [{"op": "ack", "id": subscription.id, "path": moved[0][0], "offset": moved[0][1]}]
    return [
        {"op": "acks", "id": subscription.id, "offsets": dict(moved[begin : begin + _ACKS_TOGETHER])}
        for begin in range(0, len(moved), _ACKS_TOGETHER)
    ]


def link_change(subscription: Subscription, names: list[str]) -> Change:
    return {"op": "link", "id": subscription.id, "paths": names}


def unlink_change(subscription: Subscription, name: str, epoch: int) -> Change:
    return {"op": "unlink", "id": subscription.id, "path": name, "epoch": epoch}


def generation_change(subscription: Subscription) -> Change:
    return {"op": "generation", "id": subscription.id, "generation": subscription.generation}
