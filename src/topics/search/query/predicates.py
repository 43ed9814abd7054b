"""Predicates: a query bound to a search registry. Names have become fields, values canonical ones, words scores.

A predicate is what every part answers, by a scan or by an index. The score of an entry is the sum of the scores of the
clauses that it matches, and the best one of a clause that looks at several fields. Negated clauses have none. A clause
about words scores by how often they stand in the text of the entry that has all of them; of several such texts the best
one counts.

Query grammar: parses queries and filters from text to a tree, and prints them.

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
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from topics.model.errors import InvalidRequestError, quoted
from topics.schema.documents import MAX_QUERY_CHARS
from topics.schema.search_fields import Field, SearchConfig
from topics.search.query.field_values import Value, canonical, unicode_word_v1

# Limits of one query, so that none costs more than it looks.

MAX_QUERY_DEPTH: Final = 32
"""Maximum nesting of groups and negations; walks of a query recurse."""
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
    """The tree of a query; None for an empty query."""
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
                raise self._refusal(f"{self._token.upper()} joins nothing. Put a clause on each side")
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


PHRASE_BONUS = 2
"""The score of each word of a phrase besides its matches."""


CONTAINS = "contains"
"""The prefix before the colon where a value may be anywhere in a field; unless a field has this name."""


class Predicate(msgspec.Struct, frozen=True, tag=True):
    """A condition on an entry."""


class Everything(Predicate, frozen=True):
    pass


class Nothing(Predicate, frozen=True):
    pass


class Equals(Predicate, frozen=True):
    """One of the field's values is this one."""

    field: str
    value: Value
    score: float = 0.0


class StartsWith(Predicate, frozen=True):
    """One of the keywords begins with this text."""

    field: str
    prefix: str
    score: float = 0.0


class Contains(Predicate, frozen=True):
    """One of the keywords, or one of the words of a text, has this text in it."""

    field: str
    part: str
    score: float = 0.0


class Within(Predicate, frozen=True):
    """One of the values is in a range. A bound is None where there is none."""

    field: str
    low: Value | None = None
    high: Value | None = None
    low_open: bool = False
    high_open: bool = False


class Exists(Predicate, frozen=True):
    """The field is there, as null perhaps."""

    field: str


class HasWords(Predicate, frozen=True):
    """One of the field's texts has every word, in any order; the last is only the beginning of one if `prefix`."""

    field: str
    words: tuple[str, ...]
    prefix: bool = False
    score: float = 0.0
    """The score of each word of the text that is one of these."""


class HasPhrase(Predicate, frozen=True):
    """The words stand one behind the other in one of the field's texts; the last may only begin one if `prefix`."""

    field: str
    words: tuple[str, ...]
    prefix: bool = False
    score: float = 0.0
    """As of words; besides, each word of the phrase scores this `PHRASE_BONUS` times."""


class Best(Predicate, frozen=True):
    """One of the parts matches; the best score of those that do."""

    parts: tuple[Predicate, ...]


class All(Predicate, frozen=True):
    parts: tuple[Predicate, ...]


class Any_(Predicate, frozen=True):
    """One of the parts matches; the scores of those that do are added."""

    parts: tuple[Predicate, ...]


class Negated(Predicate, frozen=True):
    part: Predicate


def walk(predicate: Predicate) -> Iterator[Predicate]:
    """The predicate and all below it."""
    yield predicate
    if isinstance(predicate, Best | All | Any_):
        for part in predicate.parts:
            yield from walk(part)
    elif isinstance(predicate, Negated):
        yield from walk(predicate.part)


def fields_of(predicate: Predicate) -> list[str]:
    """The fields that it looks at."""
    return list(dict.fromkeys(name for part in walk(predicate) if (name := getattr(part, "field", None)) is not None))


def has_scores(predicate: Predicate) -> bool:
    return any(getattr(part, "score", 0.0) for part in walk(predicate))


class Bound(msgspec.Struct, frozen=True):
    """A query, ready to be asked."""

    predicate: Predicate = Everything()
    has_text: bool = False
    """Whether it searches for words; the default sort is then by score."""


def bind_search(query: str, config: SearchConfig, what: str = "q") -> Bound:
    """The predicate of a search's query."""
    node = parse_query(query, what)
    if node is None:
        return Bound()
    predicate = _SearchBinder(config, what).bind(node)
    has_text = any(isinstance(part, HasWords | HasPhrase | Best) for part in walk(predicate))
    return Bound(predicate, has_text)


def bind_filter(query: str, config: SearchConfig, what: str = "filter") -> Predicate:
    """The predicate of a filter: the same language with fewer clauses."""
    node = parse_query(query, what)
    return Everything() if node is None else _FilterBinder(config, what).bind(node)


class _Binder:
    """Common parts of binding queries and filters."""

    def __init__(self, config: SearchConfig, what: str) -> None:
        self._config = config
        self._what = what

    def bind(self, node: Node) -> Predicate:
        if isinstance(node, And):
            return All(tuple(self.bind(part) for part in node.parts))
        if isinstance(node, Or):
            return Any_(tuple(self.bind(part) for part in node.parts))
        if isinstance(node, Not):
            return Negated(self.bind(node.part))
        if isinstance(node, Has):
            return Exists(self._field(node.field)[0])
        if isinstance(node, Clause):
            name, field = self._field(node.field)
            if node.op in ("", "="):
                return self._equality(name, field, node)
            return self._comparison(name, field, node)
        assert isinstance(node, Bare)
        return self._bare(node.value)

    def _field(self, given: str) -> tuple[str, Field]:
        name = self._config.aliases.get(given, given)
        field = self._config.fields.get(name)
        if field is None:
            raise self._unknown(given)
        return name, field

    def _unknown(self, given: str) -> InvalidRequestError:
        return self._refusal(f"field {quoted(given)} is not declared", given)

    def _equality(self, name: str, field: Field, clause: Clause) -> Predicate:
        raise NotImplementedError

    def _bare(self, value: Text) -> Predicate:
        raise NotImplementedError

    def _equals(self, name: str, field: Field, value: Text) -> Predicate:
        if not field.exact and not (field.column and field.kind != "text"):
            raise self._refusal(f"field {quoted(name)} has neither exact nor column", name)
        return Equals(name, self._value(name, field, value))

    def _comparison(self, name: str, field: Field, clause: Clause) -> Predicate:
        if not field.column:
            raise self._refusal(f"field {quoted(name)} is not a column, so it cannot be compared", name)
        value = self._value(name, field, clause.value)
        is_open = len(clause.op) == 1
        if clause.op[0] == ">":
            return Within(name, low=value, low_open=is_open)
        return Within(name, high=value, high_open=is_open)

    def _value(self, name: str, field: Field, value: Text) -> Value:
        found = canonical(field)(value.text)
        if found is None:
            raise self._refusal(f"{quoted(value.text)} is no {field.kind}, as field {quoted(name)} is", name)
        return found

    def _refusal(self, problem: str, name: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._what}: {problem}", field=self._what, search_field=name)


class _FilterBinder(_Binder):
    def _unknown(self, given: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"filter field {quoted(given)[1:-1]} is not indexed", field=self._what, search_field=given
        )

    def _equality(self, name: str, field: Field, clause: Clause) -> Predicate:
        if field.kind == "text":
            raise self._refusal(f"field {quoted(name)} is a text, which only a search looks into", name)
        if field.kind == "keyword" and _stem(clause.value) is not None and clause.op == "":
            raise self._refusal(f"field {quoted(name)}: only a search looks for beginnings; quote the value", name)
        return self._equals(name, field, clause.value)

    def _bare(self, value: Text) -> Predicate:
        raise self._refusal(f"{quoted(value.text)} has no field in front of it", "")


class _SearchBinder(_Binder):
    def bind(self, node: Node) -> Predicate:
        if isinstance(node, Clause) and node.field == CONTAINS and self._config.resolve(CONTAINS) is None:
            return self._contains(node)
        return super().bind(node)

    def _contains(self, clause: Clause) -> Predicate:
        """The value inside of a keyword or of a word, in those fields that ask for it."""
        config = self._config
        fields: Sequence[tuple[str, float]] = [
            (default.field, float(default.boost or 1)) for default in config.contains_default_fields
        ] or [(name, 1.0) for name, field in config.fields.items() if field.contains]
        fields = [(name, boost) for name, boost in fields if config.fields[name].kind in ("keyword", "text")]
        if not fields:
            raise self._refusal("no field has contains", CONTAINS)
        if clause.op not in ("", "=") or not clause.value.text:
            raise self._refusal("contains: takes a text that is not empty", CONTAINS)
        parts = [part for name, boost in fields if (part := self._inside(name, boost, clause.value.text)) is not None]
        return Best(tuple(parts)) if parts else Nothing()

    def _inside(self, name: str, boost: float, text: str) -> Predicate | None:
        field = self._config.fields[name]
        if field.kind == "keyword":
            return Contains(name, self._keyword(field, text), boost)
        # Text that is not a single word matches inside no word.
        words = unicode_word_v1(text)
        return Contains(name, words[0], boost) if words == [text.lower()] else None

    def _equality(self, name: str, field: Field, clause: Clause) -> Predicate:
        value = clause.value
        if field.kind == "text":
            return self._words(name, field, value, 1.0)
        stem = _stem(value) if field.kind == "keyword" and clause.op == "" else None
        if stem is None:
            return self._equals(name, field, value)
        if not field.prefix:
            raise self._refusal(f"field {quoted(name)} has no prefix; quote the value to mean the star", name)
        return StartsWith(name, self._keyword(field, stem))

    def _bare(self, value: Text) -> Predicate:
        """The value in any of the default fields that can hold it."""
        config = self._config
        defaults: Sequence[tuple[str, float]] = [
            (default.field, float(default.boost or 1)) for default in config.default_fields
        ] or [(name, 1.0) for name, field in config.fields.items() if field.kind == "text"]
        if not defaults:
            raise self._refusal(f"{quoted(value.text)} has no field in front of it, and none is the default", "")
        parts = [part for name, boost in defaults if (part := self._default(name, boost, value)) is not None]
        if not parts:
            raise self._refusal(f"no default field can be searched for {quoted(value.text)}", "")
        return Best(tuple(parts))

    def _default(self, name: str, boost: float, value: Text) -> Predicate | None:
        field = self._config.fields[name]
        if field.kind == "text":
            try:
                return self._words(name, field, value, boost)
            except InvalidRequestError:
                return None
        stem = _stem(value) if field.kind == "keyword" else None
        if stem is not None:
            return StartsWith(name, self._keyword(field, stem), boost) if field.prefix else None
        found = canonical(field)(value.text)
        return Equals(name, found, boost) if found is not None and (field.exact or field.column) else None

    def _words(self, name: str, field: Field, value: Text, boost: float) -> Predicate:
        words = tuple(unicode_word_v1(value.text))
        if len(words) > MAX_QUERY_WORDS:
            raise self._refusal(f"a value has more than {MAX_QUERY_WORDS} words", name)
        if not words:
            raise self._refusal(f"{quoted(value.text)} has no word to look for in field {quoted(name)}", name)
        prefix = value.text.endswith("*")
        if not value.quoted:
            return HasWords(name, words, prefix, boost)
        if not field.positions and len(words) > 1:
            raise self._refusal(f"field {quoted(name)} has no positions, which a phrase needs", name)
        return HasPhrase(name, words, prefix, boost)

    def _keyword(self, field: Field, text: str) -> str:
        found: Any = canonical(field)(text)
        return str(found)


def _stem(value: Text) -> str | None:
    """The text before the star at the end of a value; None for a value without one. A star alone is itself."""
    return value.text[:-1] if not value.quoted and value.text.endswith("*") and len(value.text) > 1 else None
