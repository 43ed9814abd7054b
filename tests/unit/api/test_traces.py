"""Trace context: ids out of a header that is well-formed, and nothing out of any other."""

import pytest

from tests.unit.http.fake_exchange import FakeExchange
from topics.api.tracing import trace_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("header", [f"00-{TRACE}-{SPAN}-01", f" 00-{TRACE}-{SPAN}-00 ", f"cc-{TRACE}-{SPAN}-01-later"])
def test_the_ids_of_a_trace(header: str) -> None:
    assert trace_of(FakeExchange({"traceparent": header}).head) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    ["", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
     f"00-{TRACE}-{SPAN}-01-more",
     f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}", f"00-{TRACE}{TRACE}-{SPAN}-01", "x" * 10_000],
)  # fmt: skip
def test_malformed_traceparent_counts_as_missing(header: str) -> None:
    assert trace_of(FakeExchange({"traceparent": header}).head) is None


def test_without_a_header_there_is_no_trace() -> None:
    assert trace_of(FakeExchange().head) is None
