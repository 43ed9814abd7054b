"""What a key with prefixes may name, and what it is told of names that are not its own.

A name can stand in more places than the path: in a config, in what a router or a subscription already goes to, in the
refusal of somebody's request. Whatever takes or tells one asks here.
"""

import copy
from collections.abc import Iterable

from topics.api.auth import Key, Scope
from topics.api.errors import ForbiddenError
from topics.core.config import TopicConfig, TopicConfigPatch
from topics.core.errors import TopicsError, quoted

_NAMING = ("topic", "source", "dest", "router", "stream", "cycle", "dead_letter")
"""The fields of an error's detail that hold names of topics, streams and routers, one or a list of them."""
_UNSAID = "(not shown)"


def check_config(key: Key, patch: TopicConfigPatch | None, existing: TopicConfig | None = None) -> None:
    """Raises ForbiddenError for a config that would have the server write where the key may not. What is there already
    may be repeated: whoever changes one field of a config sends the others back as they were."""
    if not key.prefixes or patch is None:
        return
    dead_letter = patch.dead_letter
    if isinstance(dead_letter, str) and (existing is None or existing.dead_letter != dead_letter):
        key.check(Scope(0), dead_letter)


def check_found(key: Key, names: Iterable[str], what: str) -> None:
    """Raises ForbiddenError, without a name, when something that was found goes to names which the key may not touch.
    A name that the request itself gave is checked by `Key.check`, which may tell it."""
    if key.prefixes and not all(map(key.may_touch, names)):
        raise ForbiddenError(f"{what} is outside of the key's prefixes", name=None)


def told_to(key: Key, error: TopicsError) -> TopicsError:
    """An error as this key may read it: names outside of its prefixes become null, and are not in the sentence."""
    if not key.prefixes:
        return error
    named = [(field, error.detail[field]) for field in _NAMING if field in error.detail]
    foreign = {name for _, value in named for name in _names(value) if not key.may_touch(name)}
    if not foreign:
        return error
    shown = copy.copy(error)
    shown.detail = {**error.detail, **{field: _without(foreign, value) for field, value in named}}
    for name in foreign:
        shown.message = shown.message.replace(quoted(name), _UNSAID)
    return shown


def _names(value: object) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _without(foreign: set[str], value: object) -> object:
    if isinstance(value, list):
        return [_without(foreign, one) for one in value]
    return None if value in foreign else value
