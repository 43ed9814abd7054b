"""Every test of the HTTP layer runs on both kinds of loop."""

import pytest

from tests.http.protocol.support import Loops


@pytest.fixture(params=["uvloop", "asyncio"])
def loops(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Loops:
    return Loops(request.param, caplog)
