"""What may lie under the prefixes of one key."""

import pytest

from tests.unit.conftest import append, ask_append, delete, drop, flush, hold, killed, open_engine, put, topic
from topics.engine.engine import Engine
from topics.engine.quotas import SortedNames, Tenant, fits_into
from topics.model.errors import ThrottledError
from topics.model.limits import Limits
from topics.testing import FakeDisk, ManualClock


def limited(clock: ManualClock | None = None, disk: FakeDisk | None = None, **limits: int) -> Engine:
    engine = open_engine(disk, clock, limits=Limits(**limits))  # type: ignore[arg-type]
    engine.core.quotas.set_tenants([("a:",), ("a:", "b:"), (), ("c:", "c:x")])
    return engine


def over(error: pytest.ExceptionInfo[ThrottledError]) -> object:
    return error.value.detail["limit"]


def test_names_under_a_prefix_are_counted_without_looking_at_them() -> None:
    names = SortedNames(["a", "a:", "a:1", "a:\U0010ffff", "a;", "b", "\U0010ffff1"])
    assert [names.count(prefix) for prefix in ("a:", "a", "", "x", "b", "\U0010ffff")] == [3, 5, 7, 0, 1, 1]


def test_prefixes_within_others_count_once() -> None:
    assert Tenant(("c:x", "c:", "d", "c:")).prefixes == ("c:", "d")


def test_topics_of_a_tenant_have_a_limit_and_others_do_not_feel_it() -> None:
    engine = limited(max_topics_per_key=2)
    append(engine, "a:1", 1)
    append(engine, "a:2", 1)
    with pytest.raises(ThrottledError) as refused:
        append(engine, "a:3", 1)
    assert over(refused) == "max_topics_per_key"
    with pytest.raises(ThrottledError):
        put(engine, "a:3")
    with pytest.raises(ThrottledError):
        append(engine, "b:1", 1)  # The key with both prefixes has two already.
    append(engine, "a:1", 2)
    for name in ("c:1", "x", "y", "z"):
        append(engine, name, 1)
    drop(engine, "a:1")
    append(engine, "a:3", 1)


def test_topics_on_their_way_count() -> None:
    engine = limited(max_topics_per_key=2)
    append(engine, "other", 1)
    hold(engine)
    for number in range(2):
        ask_append(engine, f"a:{number}", 1)
    with pytest.raises(ThrottledError):
        ask_append(engine, "a:9", 1)
    ask_append(engine, "another", 1)
    flush(engine)
    with pytest.raises(ThrottledError):
        append(engine, "a:9", 1)


def test_bytes_of_a_tenant_have_a_limit() -> None:
    clock = ManualClock()
    engine = limited(clock, max_bytes_per_key=10)
    append(engine, "a:1", "123")
    append(engine, "a:2", "12")
    with pytest.raises(ThrottledError) as refused:
        append(engine, "a:1", "1234")
    assert over(refused) == "max_bytes_per_key"
    assert (topic(engine, "a:1").staged_bytes, topic(engine, "a:1").live_bytes) == (0, 5)
    append(engine, "c:1", "12345678")
    append(engine, "free", "1234567890")
    delete(engine, "a:1", before_seq=2)
    with pytest.raises(ThrottledError):
        append(engine, "a:1", "1234")  # It was counted a moment ago.
    clock.advance(200)
    append(engine, "a:1", "1234")


def test_what_is_there_already_counts_after_a_restart_with_a_limit() -> None:
    disk = FakeDisk()
    engine = open_engine(disk)
    append(engine, "a:1", "123456")
    append(engine, "a:2", 1)
    engine = limited(disk=killed(disk), max_bytes_per_key=8, max_topics_per_key=1)
    with pytest.raises(ThrottledError):
        append(engine, "a:1", 12)
    with pytest.raises(ThrottledError):
        append(engine, "a:3", 1)
    append(engine, "free", "1234567890")


def test_copies_are_cut_to_what_fits() -> None:
    engine = limited(max_bytes_per_key=10)
    append(engine, "a:1", "1234")
    quotas = engine.core.quotas
    assert fits_into(quotas, topic(engine, "a:1"), [2, 2, 1]) == 2
    assert quotas.room("a:1") == 0 and quotas.room("free") is None
    assert fits_into(quotas, topic(engine, "a:1"), [1]) == 0


def test_nothing_is_metered_without_a_limit_or_without_tenants() -> None:
    assert not limited().core.metered
    engine = limited(max_bytes_per_key=10)
    assert engine.core.metered
    engine.core.quotas.set_tenants([()])
    assert not engine.core.metered


def test_routers_of_a_tenant_have_a_limit() -> None:
    engine = limited(max_routers_per_key=2)
    quotas = engine.core.quotas
    quotas.check_router("a:r", ["a:1", "b", "c:1"])
    with pytest.raises(ThrottledError) as refused:
        quotas.check_router("a:r", ["a:1", "a:2"])
    assert over(refused) == "max_routers_per_key"
    quotas.check_router("r", ["a:1", "a:2"])
