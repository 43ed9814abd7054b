import pytest

from topics.model.errors import InvalidRequestError
from topics.model.router_rules import Guarantee, RouterRules, Stamp, check_router_name


@pytest.mark.parametrize("name", ["a", "orders->audit", "a.b_c:d-e>", "0" * 255])
def test_names_of_routers(name: str) -> None:
    assert check_router_name(name) == name


@pytest.mark.parametrize("name", ["", ">a", "-a", "a b", "a\n", "ä", "a/b", "0" * 256])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_router_name(name)


def test_the_rules_unless_reported() -> None:
    rules = RouterRules()
    assert (rules.preserve_node, rules.preserve_tag, rules.filter, rules.allow_cycle) == (True, True, None, False)
    assert not rules.exactly_once
    assert RouterRules(guarantee=Guarantee("exactly_once")).exactly_once


def test_a_key_names_router_topic_and_epoch() -> None:
    assert Stamp("a->b", "a", 3, 4).key_prefix == "a->b:3:4:"
