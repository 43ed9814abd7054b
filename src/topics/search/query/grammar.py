"""Query grammar: parses queries and filters from text to a tree, and prints them.

    or      := and ("OR" and)*
    and     := unary (["AND"] unary)*
    unary   := ("NOT" | "-") unary | primary
    primary := "(" or ")" | "has" ":" field | field ":" [op] value | value
    op      := "=" | ">" | ">=" | "<" | "<="

Operators are read in any case. A word ends at a blank or at one of `( ) : > < =`. Texts stand in double quotes, where
a backslash takes away what the next character means. A `-` negates where a clause begins; behind a colon or an operator
it begins a value, so `n:-5` is a comparison with a negative number. A word before a colon is always a field.
"""

import re
from typing import Final, Literal

import msgspec

from topics.model.errors import InvalidRequestError, quoted
from topics.schema.documents import MAX_QUERY_CHARS

# What one query may ask for, so that none costs more than it looks.

MAX_QUERY_DEPTH: Final = 32
"""Groups and negations inside each other; whoever walks a query recurses."""
MAX_QUERY_CLAUSES: Final = 256
MAX_QUERY_WORDS: Final = 256
"""Words that one value of a text field falls into."""

MAX_SORT_ITEMS: Final = 8
DEFAULT_PAGE_HITS: Final = 50
MAX_PAGE_HITS: Final = 500

DEFAULT_PAGE_KEYS: Final = 100
MAX_PAGE_KEYS: Final = 500

MAX_GROUPS: Final = 65_536
"""Groups of one aggregation, over all its buckets."""


Op = Literal["", "=", ">", ">=", "<", "<="]


class Text(msgspec.Struct, frozen=True):
    """A value as it was written. A quoted one is taken word by word: a star in it is a star."""

    text: str
    quoted: bool = False


class Node(msgspec.Struct, frozen=True, tag=True):
    """A part of a query."""


class Clause(Node, frozen=True):
    """`field:value`, or a comparison of a field."""

    field: str
    op: Op
    value: Text


class Has(Node, frozen=True):
    field: str


class Bare(Node, frozen=True):
    """A value without a field."""

    value: Text


class Not(Node, frozen=True):
    part: Node


class And(Node, frozen=True):
    parts: tuple[Node, ...]
    """At least two, as in Or."""


class Or(Node, frozen=True):
    parts: tuple[Node, ...]


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<open>")
      | (?P<op>>=|<=|[=><])
      | (?P<sign>[():])
      | (?P<minus>-)
      | (?P<word>[^\s():><=]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_VALUE_WORD = re.compile(r"""\s*(?P<word>[^\s():><="][^\s():><=]*)""")
_PLAIN_WORD = re.compile(r"""[^\s():><="][^\s():><=]*""")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_NEEDS_ESCAPE = re.compile(r'[\\"]')
_OPERATORS = frozenset(("and", "or", "not"))


def parse_query(text: str, what: str = "q") -> Node | None:
    """The tree of a query; None for one that says nothing."""
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidRequestError(
            f"{what}: has more than {MAX_QUERY_CHARS} characters", field=what, max=MAX_QUERY_CHARS
        )
    if not text.strip():
        return None
    return _Parser(text, what).whole()


class _Parser:
    """One pass from left to right. `_kind` and `_token` are what stands next; no kind is the end."""

    def __init__(self, text: str, what: str) -> None:
        self._text = text
        self._what = what
        self._at = 0
        self._begin = 0
        self._kind: str | None = None
        self._token = ""
        self._clauses = 0
        self._next()

    def whole(self) -> Node:
        node = self._or(0)
        if self._kind is not None:
            raise self._refusal(f"{quoted(self._token)} is not expected")
        return node

    def _next(self, value: bool = False) -> None:
        """Goes on to the next token. Where a value stands, a word may begin with `-`."""
        found = _VALUE_WORD.match(self._text, self._at) if value else None
        found = found or _TOKEN.match(self._text, self._at)
        if found is None:
            self._begin, self._kind, self._token = len(self._text), None, ""
            return
        self._kind = found.lastgroup
        self._token = found[found.lastgroup or 0]
        self._begin, self._at = found.start(self._kind or 0), found.end()
        if self._kind == "open":
            raise self._refusal("a text has no closing quote")

    def _or(self, depth: int) -> Node:
        parts = [self._and(depth)]
        while self._is_operator("or"):
            self._next()
            parts.append(self._and(depth))
        return Or(tuple(parts)) if len(parts) > 1 else parts[0]

    def _and(self, depth: int) -> Node:
        parts = [self._unary(depth)]
        while True:
            if self._is_operator("and"):
                self._next()
            elif self._kind is None or self._token == ")" or self._is_operator("or"):
                break
            parts.append(self._unary(depth))
        return And(tuple(parts)) if len(parts) > 1 else parts[0]

    def _unary(self, depth: int) -> Node:
        if depth > MAX_QUERY_DEPTH:
            raise self._refusal(f"is nested more than {MAX_QUERY_DEPTH} deep")
        if self._kind == "minus" or self._is_operator("not"):
            self._next()
            return Not(self._unary(depth + 1))
        if self._kind == "sign" and self._token == "(":
            self._next()
            node = self._or(depth + 1)
            if self._kind != "sign" or self._token != ")":
                raise self._refusal("a group has no closing parenthesis")
            self._next()
            return node
        return self._clause()

    def _clause(self) -> Node:
        self._clauses += 1
        if self._clauses > MAX_QUERY_CLAUSES:
            raise self._refusal(f"has more than {MAX_QUERY_CLAUSES} clauses")
        if self._kind == "text":
            return Bare(self._take_value())
        if self._kind != "word":
            raise self._refusal(
                "a clause is missing at its end" if self._kind is None else f"{quoted(self._token)} is not expected"
            )
        if not self._colon_follows():
            if self._token.lower() in _OPERATORS:
                raise self._refusal(f"{self._token.upper()} has nothing to join")
            return Bare(self._take_value())
        field = self._token
        self._next()
        self._next(value=True)
        if field.lower() == "has":
            return self._has()
        op: Op = ""
        if self._kind == "op":
            op = self._token  # type: ignore[assignment]
            self._next(value=True)
        if self._kind not in ("word", "text"):
            raise self._refusal(f"field {quoted(field)} has no value; quote one that has any of ( ) : > < = in it")
        return Clause(field, op, self._take_value())

    def _has(self) -> Node:
        if self._kind != "word":
            raise self._refusal("has: names a field")
        field = self._token
        self._next()
        return Has(field)

    def _take_value(self) -> Text:
        token = self._token
        value = Text(_ESCAPED.sub(r"\1", token[1:-1]), True) if self._kind == "text" else Text(token)
        self._next()
        if self._kind in ("op", "sign") and self._token not in "()":
            raise self._refusal(
                f"{quoted(self._token)} is not expected; quote a value that has any of ( ) : > < = in it"
            )
        return value

    def _colon_follows(self) -> bool:
        found = _TOKEN.match(self._text, self._at)
        return found is not None and found["sign"] == ":"

    def _is_operator(self, word: str) -> bool:
        return self._kind == "word" and self._token.lower() == word and not self._colon_follows()

    def _refusal(self, problem: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._what}: {problem}", field=self._what, at=self._begin)


def print_query(node: Node) -> str:
    """The text of a tree, which is read as the same tree."""
    if isinstance(node, Or):
        return " OR ".join(_inside(part, Or) for part in node.parts)
    if isinstance(node, And):
        return " ".join(_inside(part, Or, And) for part in node.parts)
    if isinstance(node, Not):
        return "NOT " + _inside(node.part, Or, And)
    if isinstance(node, Has):
        return f"has:{node.field}"
    if isinstance(node, Clause):
        return f"{node.field}:{node.op}{print_text(node.value)}"
    assert isinstance(node, Bare)
    return print_text(node.value)


def _inside(part: Node, *grouped: type[Node]) -> str:
    return f"({print_query(part)})" if isinstance(part, grouped) else print_query(part)


def print_text(value: Text) -> str:
    return '"' + _NEEDS_ESCAPE.sub(r"\\\g<0>", value.text) + '"' if value.quoted else value.text


def is_bare_word(text: str) -> bool:
    """Whether a text can stand without quotes where a clause begins."""
    return _PLAIN_WORD.fullmatch(text) is not None and text[0] != "-" and text.lower() not in _OPERATORS


def is_value_word(text: str) -> bool:
    """Whether a text can stand without quotes behind a field."""
    return _PLAIN_WORD.fullmatch(text) is not None
