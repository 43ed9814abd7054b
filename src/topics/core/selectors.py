"""Which records a deletion, or a router's filter, means.

The grammar is small on purpose: an exact tag or a prefix is one lookup or one bounded range in a sorted tag index,
where anything richer would have to scan the log.

    ["tag", "Eq", "X"]     the tag is X
    ["tag", "Glob", "X*"]  the tag begins with X; the star is the last character and the only one
    "X"                    the same as ["tag", "Eq", "X"], also where X ends in a star
"""

import msgspec

from topics.core.errors import InvalidRequestError, quoted
from topics.core.limits import MAX_U64


class TagMatch(msgspec.Struct, frozen=True, gc=False):
    """A condition on the tag. `pattern` is literal text; for a prefix it is what stands before the star."""

    pattern: str
    prefix: bool = False

    def matches(self, tag: str | None) -> bool:
        """A record without a tag is matched by nothing, not even by the empty prefix."""
        if tag is None:
            return False
        return tag.startswith(self.pattern) if self.prefix else tag == self.pattern

    def to_wire(self) -> tuple[str, str, str]:
        """The long form, which `parse_match` reads back as the same value."""
        return ("tag", "Glob", self.pattern + "*") if self.prefix else ("tag", "Eq", self.pattern)


class DeleteSelector(msgspec.Struct, frozen=True, gc=False):
    """Records with a seq below `before_seq` and a tag that matches; None leaves that half of the condition out.

    The selector says nothing about time: the caller bounds it by the head at the moment of the call.
    """

    before_seq: int | None
    match: TagMatch | None


def parse_match(value: object, name: str = "match") -> TagMatch:
    """The condition in a decoded JSON value; `name` is what a refusal calls it."""
    if isinstance(value, str):
        return TagMatch(value)
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise _refusal(name, 'must be a tag or ["tag", "Eq" or "Glob", pattern]')
    field, operator, pattern = value
    if field != "tag":
        raise _refusal(name, 'the field must be "tag"')
    if not isinstance(pattern, str):
        raise _refusal(name, "the pattern must be a string")
    if operator == "Eq":
        return TagMatch(pattern)
    if operator == "Glob":
        return _parse_glob(pattern, name)
    raise _refusal(name, 'the operator must be "Eq" or "Glob"')


def _parse_glob(pattern: str, name: str) -> TagMatch:
    if not pattern.endswith("*"):
        raise _refusal(name, f"the Glob pattern {quoted(pattern)} must end in a *")
    literal = pattern[:-1]
    if "*" in literal:
        # Taking the inner star literally would delete other records than a reader of the pattern expects, and
        # deletion cannot be undone.
        raise _refusal(name, f"the Glob pattern {quoted(pattern)} may hold one * only, at its end")
    return TagMatch(literal, prefix=True)


def parse_selector(before_seq: object, match: object) -> DeleteSelector:
    """The selector of a deletion; None stands for a field that is missing or null. One of the two is needed."""
    if before_seq is None and match is None:
        raise InvalidRequestError("a deletion needs before_seq, match, or both")
    return DeleteSelector(_parse_before_seq(before_seq), None if match is None else parse_match(match))


def _parse_before_seq(value: object) -> int | None:
    if value is None:
        return None
    # JSON's true is an int to Python, and would quietly mean 1.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_U64:
        raise InvalidRequestError(f"before_seq: must be an integer from 0 to {MAX_U64}", field="before_seq")
    return value


def _refusal(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name}: {problem}", field=name)
