"""The trace of a webhook, and the bound of its memory."""

import json

from tests.unit.http.fake_exchange import FakeExchange
from topics.api.auth import Scope
from topics.api.tracing import TraceContext, Tracing
from topics.testing import ManualClock

SPAN = "b7ad6b7169203331"


def trace(number: int) -> str:
    return f"{number:032x}"


def write(tracing: Tracing, number: int, stream: str, scopes: Scope = Scope.WRITE, state: str = "") -> FakeExchange:
    exchange = FakeExchange({"traceparent": f"00-{trace(number)}-{SPAN}-01", "tracestate": state})
    tracing.admitted(exchange.head, "/v1/stream/{stream}", scopes, stream)
    return exchange


def carried(tracing: Tracing, *streams: str) -> dict[str, str]:
    body = json.dumps({"type": "wake", "streams": [{"path": name} for name in streams]}).encode()
    return tracing.call("https://example.com/hook", body)[0]


def test_the_newest_trace_that_wrote_to_one_of_its_streams() -> None:
    clock = ManualClock()
    tracing = Tracing(clock.monotonic)
    for number, stream in enumerate(("a", "b", "c"), 1):
        write(tracing, number, stream, state="v=1")
        clock.advance(1_000)
    write(tracing, 4, "a", Scope.READ)
    assert carried(tracing, "a", "b") == {"traceparent": f"00-{trace(2)}-{SPAN}-01", "tracestate": "v=1"}
    assert carried(tracing, "a")["traceparent"] == f"00-{trace(1)}-{SPAN}-01"
    assert carried(tracing, "d") == {}
    clock.advance(58_500)
    assert carried(tracing, "a", "b") == {}
    assert carried(tracing, "c") != {}


def test_traces_of_so_many_streams_are_kept() -> None:
    tracing = Tracing(ManualClock().monotonic)
    write(tracing, 1, "first")
    write(tracing, 2, "second")
    for number in range(1, 1024):
        write(tracing, number, f"s{number}")
        write(tracing, number, "first")
    assert carried(tracing, "second") == {}
    assert carried(tracing, "first")["traceparent"] == f"00-{trace(1023)}-{SPAN}-01"


def test_an_answer_states_where_it_stands() -> None:
    tracing = Tracing(ManualClock().monotonic)
    assert write(tracing, 5, "a").head.answer_headers == (("traceresponse", f"00-{trace(5)}-{SPAN}-01"),)


def test_a_state_that_is_too_long_or_none_is_not_passed_on() -> None:
    tracing = Tracing(ManualClock().monotonic)
    for state in ("x" * 513, "ü=1", "a\x7f=1"):
        write(tracing, 6, "a", state=state)
        assert "tracestate" not in carried(tracing, "a")
    assert TraceContext(trace(1), SPAN).parent.endswith("-00")
