import asyncio
import gc
import weakref

from topics.api.v1 import protocol
from topics.api.v1.protocol import Deadlines


class Body:
    """Stands for the memory of a request."""


def test_an_answered_request_is_let_go_at_once() -> None:
    async def answered() -> None:
        body = Body()
        watched = weakref.ref(body)
        pending = Deadlines(60.0).begin(lambda held=body: print(held))  # type: ignore[misc]
        del body
        assert watched() is not None
        assert pending.met()
        gc.collect()
        assert watched() is None
        assert not pending.met()

    asyncio.run(answered())


def test_only_what_is_not_answered_is_missed() -> None:
    async def missed() -> list[str]:
        reported: list[str] = []
        waiting = Deadlines(0.0)
        answered = waiting.begin(lambda: reported.append("answered"))
        waiting.begin(lambda: reported.append("late"))
        assert answered.met()
        await asyncio.sleep(3 * protocol._TICK_S)
        return reported

    assert asyncio.run(missed()) == ["late"]
