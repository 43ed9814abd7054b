import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.errors import InvalidRequestError
from topics.model.router_rules import DeleteSelector, TagMatch, parse_match, parse_selector

LEGAL = [
    ("msg-123", TagMatch("msg-123")),
    ("chat-42:*", TagMatch("chat-42:*")),
    ("", TagMatch("")),
    (["tag", "Eq", "X"], TagMatch("X")),
    (("tag", "Eq", "X"), TagMatch("X")),
    (["tag", "Eq", "X*"], TagMatch("X*")),
    (["tag", "Eq", "*a*"], TagMatch("*a*")),
    (["tag", "Glob", "chat-42:*"], TagMatch("chat-42:", prefix=True)),
    (["tag", "Glob", "*"], TagMatch("", prefix=True)),
    (["tag", "Glob", "é?[a]*"], TagMatch("é?[a]", prefix=True)),
]

ILLEGAL: list[tuple[object, str]] = [
    (None, "must be a tag or"),
    (5, "must be a tag or"),
    (True, "must be a tag or"),
    ({"tag": "X"}, "must be a tag or"),
    ([], "must be a tag or"),
    (["tag", "Eq"], "must be a tag or"),
    (["tag", "Eq", "X", "Y"], "must be a tag or"),
    (["node", "Eq", "X"], 'field must be "tag"'),
    (["Tag", "Eq", "X"], 'field must be "tag"'),
    ([["tag"], "Eq", "X"], 'field must be "tag"'),
    (["tag", "eq", "X"], "operator must be"),
    (["tag", "Regex", "X*"], "operator must be"),
    (["tag", None, "X"], "operator must be"),
    (["tag", "Eq", 5], "pattern must be a string"),
    (["tag", "Eq", None], "pattern must be a string"),
    (["tag", "Glob", ["X*"]], "pattern must be a string"),
    (["tag", "Glob", "X"], "must end in a"),
    (["tag", "Glob", ""], "must end in a"),
    (["tag", "Glob", "*X"], "must end in a"),
    (["tag", "Glob", "X* "], "must end in a"),
    (["tag", "Glob", "a*b*"], "one \\* only"),
    (["tag", "Glob", "**"], "one \\* only"),
]


@pytest.mark.parametrize(("value", "expected"), LEGAL)
def test_each_legal_form(value: object, expected: TagMatch) -> None:
    assert parse_match(value) == expected


@pytest.mark.parametrize(("value", "problem"), ILLEGAL)
def test_each_illegal_form(value: object, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        parse_match(value)
    assert caught.value.detail == {"field": "match"}


@pytest.mark.parametrize(
    ("match", "tag", "expected"),
    [
        (TagMatch("a"), "a", True),
        (TagMatch("a"), "ab", False),
        (TagMatch("a"), "A", False),
        (TagMatch("a"), None, False),
        (TagMatch(""), "", True),
        (TagMatch(""), None, False),
        (TagMatch("a*"), "ab", False),
        (TagMatch("a*"), "a*", True),
        (TagMatch("a", prefix=True), "a", True),
        (TagMatch("a", prefix=True), "ab", True),
        (TagMatch("a", prefix=True), "ba", False),
        (TagMatch("a", prefix=True), None, False),
        (TagMatch("", prefix=True), "", True),
        (TagMatch("", prefix=True), "anything", True),
        (TagMatch("", prefix=True), None, False),
        # The same letter in two spellings is two tags: nothing is normalised.
        (TagMatch("e\u0301"), "\u00e9", False),
    ],
)
def test_matching(match: TagMatch, tag: str | None, expected: bool) -> None:
    assert match.matches(tag) is expected


@given(st.text().filter(lambda text: "*" not in text), st.booleans())
def test_the_wire_form_reads_back(pattern: str, prefix: bool) -> None:
    match = TagMatch(pattern, prefix)
    assert parse_match(match.to_wire()) == match
    assert parse_match(list(match.to_wire())) == match


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["tag", "Eq", "Glob", "a*"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(json_values)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        assert isinstance(parse_match(value), TagMatch)
    except InvalidRequestError as error:
        msgspec.json.encode(error.detail)


@pytest.mark.parametrize(
    ("before_seq", "match", "expected"),
    [
        (480_001, None, DeleteSelector(480_001, None)),
        (0, None, DeleteSelector(0, None)),
        (2**64 - 1, None, DeleteSelector(2**64 - 1, None)),
        (None, "X", DeleteSelector(None, TagMatch("X"))),
        (7, ["tag", "Glob", "X*"], DeleteSelector(7, TagMatch("X", prefix=True))),
    ],
)
def test_each_selector(before_seq: object, match: object, expected: DeleteSelector) -> None:
    assert parse_selector(before_seq, match) == expected


@pytest.mark.parametrize(
    ("before_seq", "match", "problem"),
    [
        (None, None, "needs before_seq, match, or both"),
        (-1, None, "integer from 0"),
        (2**64, None, "integer from 0"),
        (1.0, None, "integer from 0"),
        (True, None, "integer from 0"),
        ("5", None, "integer from 0"),
        ([5], "X", "integer from 0"),
        (5, ["tag", "Glob", "X"], "must end in a"),
    ],
)
def test_each_refused_selector(before_seq: object, match: object, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        parse_selector(before_seq, match)
