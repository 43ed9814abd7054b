"""The sweep lets go of who is no longer swept."""

import gc
import weakref

from tests.unit.api.live.rig import Rig
from topics.api.live import Sweep


def test_an_outlet_that_is_no_longer_swept_is_not_kept() -> None:
    rig = Rig()
    sweep = Sweep(rig.turns)
    outlet = rig.outlet()
    # As connections do: they keep what ends their being swept.
    outlet.remove = sweep.add(outlet)  # type: ignore[attr-defined]
    assert len(sweep) == 1
    outlet.remove()  # type: ignore[attr-defined]
    outlet.remove()  # type: ignore[attr-defined]
    assert len(sweep) == 0
    reference = weakref.ref(outlet)
    gc.disable()
    try:
        del outlet
        assert reference() is None
    finally:
        gc.enable()
