import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.errors import InvalidRequestError
from topics.model.topic_config import check_topic_name, is_reserved_name, is_topic_name


@pytest.mark.parametrize(
    "name", ["a", "7", "jobs", "render-queue:tenantA", "a.b_c:d-e", "A--", "0" * 255, "a" + ":" * 254]
)
def test_legal_names_come_back_unchanged(name: str) -> None:
    assert check_topic_name(name) is name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 256,
        ".",
        "..",
        ".hidden",
        "-flag",
        "_a",
        ":a",
        "a/b",
        "../etc/passwd",
        "a b",
        "jobs\n",
        "\njobs",
        "jobs\x00",
        "jobs>audit",
        "a*",
        "a%3Ab",
        "é",
        "aé",
        "٣",  # An Arabic-Indic digit: a digit to `str.isdigit`, not to the rule.
        "a\ud800",
        "ａ",  # A full-width letter, which normalisation would turn into a legal one.
    ],
)
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a topic name"):
        check_topic_name(name)


@given(st.text(alphabet=st.sampled_from("aZ09._:-/ \n*é"), max_size=260))
def test_the_rule_is_the_published_expression(name: str) -> None:
    legal = re.match(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}\Z", name) is not None
    try:
        check_topic_name(name)
    except InvalidRequestError:
        assert not legal
    else:
        assert legal


def test_the_message_stays_short() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_topic_name("/" * 1_000_000)
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    "name",
    ["__ds", "__ds/x", "__registry__", "__stream_metrics__", "__stream_stats__", "a/_x", "a/b/_x", "a/pk", "a/pk/x/y",
     "a/touch", "a/b/touch/x"],
)  # fmt: skip
def test_reserved_names(name: str) -> None:
    assert is_reserved_name(name)
    assert not is_topic_name(name), "so that no topic can be called so either"


@pytest.mark.parametrize(
    "name", ["_x", "pk", "touch", "pk/x", "touch/x", "a/_x/b", "__registry__/x", "a__ds", "a/", "a"]
)
def test_names_that_are_free(name: str) -> None:
    assert not is_reserved_name(name)
