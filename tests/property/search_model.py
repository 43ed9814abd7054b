"""Random registries, entries and queries, and a plain filter that computes the expected hits.

The filter walks the tree of a query over whole entries and uses no predicates, rows, parts or indexes.
"""

from collections.abc import Callable, Sequence
from functools import cmp_to_key, reduce
from operator import add, eq, ge, gt, le, lt
from typing import Any

from hypothesis import strategies as st

from topics.schema.documents import MISSING, finder, parse_pointer
from topics.schema.search_fields import Field, SearchConfig, parse_search
from topics.search.query.field_values import canonical, unicode_word_v1
from topics.search.query.predicates import And, Bare, Clause, Has, Node, Not, Or, Text

WORDS = (
    "a", "b", "ab", "abc", "B", "x-y", "a b", "b a a", "a a b ab a", "Ab b", "", "*", "é", "1", "-2", "true", "FALSE",
    "Straße a",
)  # fmt: skip
DATES = ("1970-01-01T00:00:00.001Z", "1970-01-01", "1", "60000", 0, 1, 2, 59_999, 60_000, 3_600_000, -1, 2.5)
NUMBERS = (0, 1, -2, 3, 1.0, 0.25, -0.5, "1", "3", "0.25", 2**40, 2**63 - 1)

scalars = st.one_of(st.none(), st.booleans(), st.sampled_from(WORDS), st.sampled_from(NUMBERS), st.sampled_from(DATES))
members: st.SearchStrategy[Any] = st.one_of(
    scalars, scalars, st.lists(scalars, max_size=3), st.just([[], ["a", [None]]]), st.just({"a": 1})
)
NAMES = ("key", "low", "word", "more", "int", "num", "day", "flag", "time")
KINDS = ("keyword", "keyword", "text", "text", "integer", "float", "date", "bool", "date")
entries: st.SearchStrategy[Any] = st.one_of(
    st.dictionaries(st.sampled_from(NAMES), members, max_size=9),
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(WORDS),
            "word": st.sampled_from(WORDS),
            "int": st.sampled_from(NUMBERS),
            "num": st.sampled_from(NUMBERS),
            "time": st.sampled_from(DATES),
        }
    ),
    scalars,
)


@st.composite
def configs(draw: st.DrawFn) -> SearchConfig:
    """Fields of all kinds, with randomly chosen options."""
    fields = {}
    for name, kind in zip(NAMES, KINDS, strict=True):
        flags: dict[str, Any] = {"exact": draw(st.booleans()), "exists": draw(st.booleans())}
        if kind == "text":
            flags |= {"analyzer": "unicode_word_v1", "positions": draw(st.booleans())}
        else:
            flags |= {"column": draw(st.booleans()), "sortable": draw(st.booleans()), "aggregatable": True}
        if kind == "keyword":
            flags |= {"prefix": draw(st.booleans())}
        if kind in ("keyword", "text"):
            flags |= {"contains": draw(st.booleans())}
        if name == "low":
            flags["normalizer"] = "lowercase_v1"
        fields[name] = {"kind": kind, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}], **flags}
    defaults = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    boosts = st.sampled_from((1, 2, 0.5, 0.3, 1.2))
    rollup_fields = [name for name in ("key", "low", "int", "flag") if fields[name]["exact"]]
    return parse_search(
        {
            "primaryTimestampField": "time",
            "aliases": {"k": "key", "n": "num"},
            "fields": fields,
            "defaultFields": [{"field": name, "boost": draw(boosts)} for name in defaults],
            "containsDefaultFields": draw(
                st.sampled_from(([], [{"field": "low", "boost": 3}], [{"field": "key"}, {"field": "word", "boost": 2}]))
            ),
            "rollups": {
                "sums": {
                    "dimensions": rollup_fields,
                    "intervals": ["1m", "1h"],
                    "measures": {
                        "count": {"kind": "count"},
                        "some": {"kind": "count", "include": "has:word"},
                        "num": {"kind": "summary", "field": "num", "histogram": "log2_v1"},
                    },
                },
                "plain": {"include": "-has:flag", "intervals": ["1m"], "measures": {"count": {"kind": "count"}}},
            },
        }
    )


def queries(config: SearchConfig) -> st.SearchStrategy[Node]:
    """Queries that a search of this registry takes."""
    nodes = _leaves(config)
    for _ in range(2):
        several = st.lists(nodes, min_size=2, max_size=3).map(tuple)
        nodes = st.one_of(nodes, several.map(And), several.map(Or), nodes.map(Not))
    return nodes


def _leaves(config: SearchConfig) -> st.SearchStrategy[Node]:
    leaves: list[st.SearchStrategy[Node]] = [st.sampled_from((*NAMES, "k")).map(Has)]
    quoted = st.sampled_from(WORDS).map(lambda text: Text(text, True))
    plain = st.sampled_from(("a", "b", "ab", "a-a", "x-y", "é", "1", "a*", "b*", "*", "x-y*", "A")).map(Text)
    for name, field in config.fields.items():
        leaves += _field_leaves(name, field, quoted, plain)
    if any(config.fields[default.field].kind == "text" for default in config.default_fields):
        bare = st.sampled_from(("a", "b", "ab*")).map(lambda text: Text(text, True))
        leaves += [st.one_of(plain.filter(has_words), bare).map(Bare)]
    if containing(config):
        inside = st.sampled_from(("a", "b", "B", "é", "ß", "y", "x-y", " "))
        leaves.append(inside.map(lambda text: Clause("contains", "", Text(text, True))))
    return st.one_of(leaves)


def has_words(value: Text) -> bool:
    """Whether a text field can be searched for a value."""
    return bool(unicode_word_v1(value.text))


def containing(config: SearchConfig) -> list[tuple[str, float]]:
    """The fields that are searched for words, with their boosts."""
    named = [(default.field, float(default.boost or 1)) for default in config.contains_default_fields]
    return named or [(name, 1.0) for name, field in config.fields.items() if field.contains]


def _field_leaves(
    name: str, field: Field, quoted: st.SearchStrategy[Text], plain: st.SearchStrategy[Text]
) -> list[st.SearchStrategy[Node]]:
    if field.kind == "text":
        begun = st.sampled_from(("a*", "a b*", "b a*", "a a*")).map(lambda text: Text(text, True))
        phrases = st.one_of(quoted, begun)
        if not field.positions:
            phrases = phrases.filter(lambda value: len(unicode_word_v1(value.text)) < 2)
        return [st.one_of(plain, phrases).filter(has_words).map(lambda value: Clause(name, "", value))]
    if field.kind == "keyword":
        values: st.SearchStrategy[Text] = quoted
        stems = plain.filter(lambda value: value.text != "*" and value.text.endswith("*"))
    else:
        canon = canonical(field)
        typed = [str(value) for value in (*NUMBERS, *DATES, "true", "false") if canon(str(value)) is not None]
        values, stems = st.sampled_from(typed).map(lambda text: Text(text, True)), st.nothing()
    leaves: list[st.SearchStrategy[Node]] = []
    if field.exact or field.column:
        leaves.append(st.builds(lambda op, value: Clause(name, op, value), st.sampled_from(("", "=")), values))
    if field.column:
        ops = st.sampled_from((">", ">=", "<", "<="))
        leaves.append(st.builds(lambda op, value: Clause(name, op, value), ops, values))
    if field.prefix:
        leaves.append(stems.map(lambda value: Clause(name, "", value)))
    return leaves


def values_of(entry: Any, name: str, config: SearchConfig) -> list[Any] | None:
    """The raw values of a field; None where it is absent."""
    found = finder(parse_pointer(f"/{name}", ""))(entry)
    if found is MISSING:
        return None
    flat = list(_flat(found))
    return flat or None


def _flat(found: Any) -> Any:
    if isinstance(found, list):
        for element in found:
            yield from _flat(element)
    else:
        yield found


def comparable(entry: Any, name: str, config: SearchConfig) -> list[Any]:
    canon = canonical(config.fields[name])
    return [value for raw in values_of(entry, name, config) or () if (value := canon(raw)) is not None]


def judge(node: Node, entry: Any, config: SearchConfig) -> float | None:
    """The score of an entry that matches, else None."""
    if isinstance(node, And):
        scores = [judge(part, entry, config) for part in node.parts]
        return None if None in scores else reduce(add, (score for score in scores if score), 0.0)
    if isinstance(node, Or):
        met = [score for part in node.parts if (score := judge(part, entry, config)) is not None]
        return reduce(add, met, 0.0) if met else None
    if isinstance(node, Not):
        return 0.0 if judge(node.part, entry, config) is None else None
    if isinstance(node, Has):
        name = config.aliases.get(node.field, node.field)
        return None if values_of(entry, name, config) is None else 0.0
    if isinstance(node, Clause):
        return (_judge_contains if node.field == "contains" else _judge_clause)(node, entry, config)
    assert isinstance(node, Bare)
    return _judge_bare(node.value, entry, config)


def _judge_contains(node: Clause, entry: Any, config: SearchConfig) -> float | None:
    scores = []
    for name, boost in containing(config):
        values, text = comparable(entry, name, config), node.value.text
        if config.fields[name].kind == "text":
            # A word of the values; text that is not part of one word is in none.
            values = [word for value in values for word in unicode_word_v1(value)]
            text = text.lower() if text.isalnum() else "\n"
        elif config.fields[name].normalizer == "lowercase_v1":
            text = text.lower()
        if any(text in value for value in values):
            scores.append(boost)
    return max(scores) if scores else None


def _judge_clause(node: Clause, entry: Any, config: SearchConfig) -> float | None:
    name = config.aliases.get(node.field, node.field)
    field = config.fields[name]
    if field.kind == "text":
        return _judge_text(name, node.value, entry, config, 1)
    values = comparable(entry, name, config)
    canon = canonical(field)
    text, op = node.value.text, node.op
    if field.kind == "keyword" and op == "" and not node.value.quoted and text.endswith("*") and text != "*":
        stem: Any = canon(text[:-1])
        return 0.0 if any(value.startswith(stem) for value in values) else None
    requested: Any = canon(text)
    compare = {"": eq, "=": eq, ">": gt, ">=": ge, "<": lt, "<=": le}[op]
    return 0.0 if any(compare(value, requested) for value in values) else None


def _judge_text(name: str, value: Text, entry: Any, config: SearchConfig, boost: float) -> float | None:
    words = unicode_word_v1(value.text)
    is_prefix = value.text.endswith("*")

    def is_met(place: int, word: str) -> bool:
        return word.startswith(words[place]) if is_prefix and place == len(words) - 1 else word == words[place]

    scores = []
    for text in comparable(entry, name, config):
        seen = unicode_word_v1(text)
        matches = [sum(is_met(place, word) for word in seen) for place in range(len(words))]
        if value.quoted:
            runs = [seen[at : at + len(words)] for at in range(len(seen) - len(words) + 1)]
            if any(all(is_met(place, word) for place, word in enumerate(run)) for run in runs):
                scores.append((sum(matches) + 2 * len(words)) * boost)
        elif all(matches):
            scores.append(sum(matches) * boost)
    return max(scores) if scores else None


def _judge_bare(value: Text, entry: Any, config: SearchConfig) -> float | None:
    scores: list[float] = []
    for default in config.default_fields:
        boost = float(default.boost or 1)
        field = config.fields[default.field]
        if field.kind == "text":
            if value.quoted and not field.positions and len(unicode_word_v1(value.text)) > 1:
                continue
            score = _judge_text(default.field, value, entry, config, boost)
        else:
            score = _judge_default(default.field, field, value, entry, config, boost)
        if score is not None:
            scores.append(score)
    return max(scores) if scores else None


def _judge_default(
    name: str, field: Field, value: Text, entry: Any, config: SearchConfig, boost: float
) -> float | None:
    is_stem = field.kind == "keyword" and not value.quoted and value.text.endswith("*") and value.text != "*"
    if is_stem and not field.prefix:
        return None
    if not is_stem and (canonical(field)(value.text) is None or not (field.exact or field.column)):
        return None
    met = _judge_clause(Clause(name, "" if is_stem else "=", value), entry, config)
    return None if met is None else boost


SortItems = list[tuple[str, bool]]
"""Names, and whether they ascend; the offset is the last."""


def sorts(config: SearchConfig) -> st.SearchStrategy[SortItems]:
    names = ["_score", "offset", "time", *(name for name, field in config.fields.items() if field.sortable)]
    drawn = st.lists(st.sampled_from(sorted(set(names))), min_size=1, max_size=3, unique=True)

    def build(chosen: list[str], ways: list[bool]) -> SortItems:
        items = list(zip(chosen, ways, strict=False))
        return items if "offset" in chosen else [*items, ("offset", False)]

    return st.builds(build, drawn, st.lists(st.booleans(), min_size=3, max_size=3))


def plain_search(
    entries: Sequence[Any],
    node: Node | None,
    items: SortItems,
    config: SearchConfig,
    score_of: Callable[[Node, Any], float | None] | None = None,
) -> list[tuple[int, float]]:
    """Every match with its score, in order. Scores are the scores of clauses, unless the caller passes others."""
    give = score_of or (lambda node, entry: judge(node, entry, config))
    met = []
    for number, entry in enumerate(entries):
        score = 0.0 if node is None else give(node, entry)
        if score is not None:
            met.append((number, score))

    def key(hit: tuple[int, float], name: str, ascending: bool) -> Any:
        if name == "offset":
            return hit[0]
        if name == "_score":
            return hit[1]
        values = comparable(entries[hit[0]], name, config)
        return (min if ascending else max)(values) if values else None

    def order(one: tuple[int, float], other: tuple[int, float]) -> int:
        for name, ascending in items:
            left, right = key(one, name, ascending), key(other, name, ascending)
            if left != right:
                is_less = right is None or (left is not None and left < right)
                return (-1 if is_less else 1) * (1 if ascending else -1)
        return 0

    return sorted(met, key=cmp_to_key(order))
