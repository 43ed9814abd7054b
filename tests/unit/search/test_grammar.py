"""Queries, from text to a tree and back."""

import pytest

from topics.model.errors import InvalidRequestError
from topics.schema.documents import MAX_QUERY_CHARS
from topics.search.query.predicates import (
    MAX_QUERY_CLAUSES,
    MAX_QUERY_DEPTH,
    And,
    Bare,
    Clause,
    Has,
    Node,
    Not,
    Or,
    Text,
    parse_query,
    print_query,
)


def clause(field: str, value: str, op: str = "", quoted: bool = False) -> Clause:
    return Clause(field, op, Text(value, quoted))  # type: ignore[arg-type]


A, B, C = clause("a", "1"), clause("b", "2"), clause("c", "3")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a:1", A),
        ("  a : 1 ", A),
        ("a:=1", clause("a", "1", "=")),
        ("a:>=1", clause("a", "1", ">=")),
        ("a:>1", clause("a", "1", ">")),
        ("a:< 1", clause("a", "1", "<")),
        ("a:<=1", clause("a", "1", "<=")),
        ("service:billing-api", clause("service", "billing-api")),
        ("n:-5", clause("n", "-5")),
        ("n:>-5", clause("n", "-5", ">")),
        ('a:"x \\"y\\" \\\\"', clause("a", 'x "y" \\', quoted=True)),
        ('t:>="2026-03-25T10:00:00Z"', clause("t", "2026-03-25T10:00:00Z", ">=", True)),
        ("service:*", clause("service", "*")),
        ("has:a", Has("a")),
        ("HAS:a", Has("a")),
        ("timeout", Bare(Text("timeout"))),
        ('"card declined"', Bare(Text("card declined", True))),
        ("a:1 b:2", And((A, B))),
        ("a:1 and b:2 AND c:3", And((A, B, C))),
        ("a:1 OR b:2 c:3", Or((A, And((B, C))))),
        ("(a:1 or b:2) c:3", And((Or((A, B)), C))),
        ("a:1 (b:2 c:3)", And((A, And((B, C))))),
        ("-a:1", Not(A)),
        ("NOT NOT a:1", Not(Not(A))),
        ("- (a:1 b:2)", Not(And((A, B)))),
        ("x -y", And((Bare(Text("x")), Not(Bare(Text("y")))))),
        ("a:and", clause("a", "and")),
        ("and:1", clause("and", "1")),
        ("not:1 or:2", And((clause("not", "1"), clause("or", "2")))),
        ("a:1(b:2)", And((A, B))),
        ('ab"c', Bare(Text('ab"c'))),
    ],
)
def test_texts_and_trees(text: str, tree: Node) -> None:
    assert parse_query(text) == tree
    assert parse_query(print_query(tree)) == tree


@pytest.mark.parametrize("text", ["", "   ", "\t\n"])
def test_a_query_that_states_nothing_is_none(text: str) -> None:
    assert parse_query(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:", "has no value"),
        ("a:>", "has no value"),
        ("a:(b)", "has no value"),
        ("ts:>=2026-03-25T10:00:00Z", "quote a value"),
        ("a:b:c", "quote a value"),
        ("a > 3", "not expected"),
        ('a:"x', "no closing quote"),
        ("(a:1", "no closing parenthesis"),
        ("a:1)", "not expected"),
        (")", "not expected"),
        (":", "not expected"),
        ("a:1 OR", "missing at its end"),
        ("NOT", "missing at its end"),
        ("-", "missing at its end"),
        ("OR a:1", "joins nothing"),
        ("a:1 AND AND b:2", "joins nothing"),
        ("has:", "names a field"),
        ('has:"a"', "names a field"),
        ('"a":1', "not expected"),
    ],
)
def test_invalid_query_is_refused_with_its_position(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as refused:
        parse_query(text, "filter")
    assert refused.value.message.startswith("filter: ")
    assert 0 <= refused.value.detail["at"] <= len(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a" * (MAX_QUERY_CHARS + 1), "characters"),
        ("(" * (MAX_QUERY_DEPTH + 2) + "a" + ")" * (MAX_QUERY_DEPTH + 2), "nested"),
        ("-" * (MAX_QUERY_DEPTH + 2) + "a", "nested"),
        ("NOT " * (MAX_QUERY_DEPTH + 2) + "a", "nested"),
        ("a " * (MAX_QUERY_CLAUSES + 1), "clauses"),
        ("(" * 4096, "nested"),
    ],
)
def test_hostile_queries_meet_a_bound(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        parse_query(text)


def test_a_query_up_to_its_bounds_is_read() -> None:
    assert parse_query("(" * MAX_QUERY_DEPTH + "a" + ")" * MAX_QUERY_DEPTH) == Bare(Text("a"))
    assert len(parse_query("a " * MAX_QUERY_CLAUSES).parts) == MAX_QUERY_CLAUSES  # type: ignore[union-attr]
