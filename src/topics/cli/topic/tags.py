"""Conditions on tags, as the command line takes them."""

from topics.cli.shared.failures import UsageError
from topics.client import TagMatch


def tag_match(text: str) -> TagMatch:
    """`order-7` means that tag, `order-*` every tag that begins so."""
    literal = text.removesuffix("*")
    if "*" in literal:
        raise UsageError(f"the tag {text!r} has a * in it: only one at its end means any ending")
    return TagMatch(literal, prefix=literal != text)
