"""The sweep drops references to connections that are no longer swept."""

import gc
import weakref

from tests.unit.api.live.rig import Rig
from topics.api.live import Sweep


def test_a_sink_that_is_no_longer_swept_is_not_kept() -> None:
    rig = Rig()
    sweep = Sweep(rig.run_queue)
    sink = rig.sink()
    # As connections do: they keep the function that ends their sweeping.
    sink.remove = sweep.add(sink)  # type: ignore[attr-defined]
    assert len(sweep) == 1
    sink.remove()  # type: ignore[attr-defined]
    sink.remove()  # type: ignore[attr-defined]
    assert len(sweep) == 0
    reference = weakref.ref(sink)
    gc.disable()
    try:
        del sink
        assert reference() is None
    finally:
        gc.enable()
