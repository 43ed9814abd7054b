"""Limits of the data under the prefixes of one key."""

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.unit.conftest import (
    EPHEMERAL,
    MEMORY,
    append,
    ask_append,
    delete,
    drop,
    flush,
    hold,
    killed,
    open_engine,
    put,
    topic,
)
from tests.unit.streams.conftest import append as append_entry
from tests.unit.streams.conftest import create
from topics.engine.engine import Engine
from topics.engine.quotas import SortedNames, Tenant, fits_into, kept_bytes
from topics.model.errors import ThrottledError
from topics.model.limits import Limits
from topics.model.topic_config import TopicType
from topics.queues.leases import ClaimRequest
from topics.streams.stream_frames import Producer
from topics.streams.streams import inline_streams
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


# Memory that topics keep.

LIMIT = 20_000


def budgeted(disk: FakeDisk | None = None) -> Engine:
    return limited(disk=disk, max_memory_bytes=2 * LIMIT, max_memory_bytes_per_key=LIMIT)


def fill(engine: Engine, name: str, keyed: bool = False, payload: str = "x" * 100) -> tuple[object, int]:
    """Appends until it is refused: the limit that was met, and how many there are."""
    for number in range(1_000):
        try:
            append(engine, name, payload, **({"key": f"key {number}"} if keyed else {}))
        except ThrottledError as error:
            return error.detail["limit"], number
    raise AssertionError("nothing was refused")


def test_ephemeral_records_of_a_tenant_have_a_budget_and_others_do_not_feel_it() -> None:
    engine = budgeted()
    put(engine, "a:1", durability=EPHEMERAL)
    put(engine, "a:2", durability=EPHEMERAL)
    put(engine, "z", durability=EPHEMERAL)
    assert fill(engine, "a:1")[0] == "max_memory_bytes_per_key"
    with pytest.raises(ThrottledError):
        append(engine, "a:2", "x" * 100)
    assert engine.core.memory.total_bytes <= LIMIT
    append(engine, "a:logged", "x" * 100)
    append(engine, "z", "x" * 100)
    delete(engine, "a:1", before_seq=10)
    append(engine, "a:2", "x" * 100)


def test_the_whole_server_has_a_memory_budget() -> None:
    engine = budgeted()
    put(engine, "z", durability=EPHEMERAL)
    assert fill(engine, "z")[0] == "max_memory_bytes"
    drop(engine, "z")
    assert engine.core.memory.total_bytes == 0
    assert not engine.core.memory.pressed
    put(engine, "z", durability=EPHEMERAL)
    append(engine, "z", 1)


def test_an_ephemeral_topic_with_a_cap_is_never_refused() -> None:
    engine = budgeted()
    put(engine, "a:1", durability=EPHEMERAL, cap_records=5)
    for _ in range(500):
        append(engine, "a:1", "x" * 100)


def test_idempotency_keys_count_and_known_ones_are_answered_when_the_budget_is_used_up() -> None:
    engine = budgeted()
    append(engine, "a:1", 0)
    limit, count = fill(engine, "a:1", keyed=True)
    assert limit == "max_memory_bytes_per_key"
    assert count < 40
    assert append(engine, "a:1", "x" * 100, key="key 0").deduped
    append(engine, "a:1", "x" * 100)


def test_keys_that_grew_old_make_room() -> None:
    clock = ManualClock()
    engine = limited(clock, max_memory_bytes_per_key=LIMIT)
    append(engine, "a:1", 0)
    fill(engine, "a:1", keyed=True)
    clock.advance(10 * 24 * 3_600_000)
    engine.housekeeper.tick()
    append(engine, "a:1", 1, key="another")


def test_memory_is_counted_again_after_a_restart() -> None:
    disk = FakeDisk()
    engine = budgeted(disk)
    append(engine, "a:1", 0)
    fill(engine, "a:1", keyed=True)
    kept = engine.core.memory.total_bytes
    again = budgeted(killed(disk))
    assert again.core.memory.total_bytes == kept
    with pytest.raises(ThrottledError):
        append(again, "a:1", 1, key="another")


def test_requests_that_are_decoded_together_are_taken_one_by_one_near_the_budget() -> None:
    engine = budgeted()
    put(engine, "a:1", durability=EPHEMERAL)
    fill(engine, "a:1")
    assert not engine._appender.append_requests("a:1", [object()], NoSource())  # type: ignore[arg-type]


class NoSource:
    """Requests that must not be decoded."""

    def decode(self, requests: Sequence[object]) -> None:
        raise AssertionError("the requests were taken")

    handle_each = answer = decode


def test_producers_and_schemas_count() -> None:
    engine = budgeted()
    streams = inline_streams(engine)
    create(streams, "a:s", "application/json")
    with pytest.raises(ThrottledError) as refused:
        for number in range(1_000):
            append_entry(streams, "a:s", b"1", "application/json", producer=Producer(f"p{number}", 0, 0))
    assert over(refused) == "max_memory_bytes_per_key"
    append_entry(streams, "a:s", b"1", "application/json", producer=Producer("p0", 0, 1))
    answers: list[object] = []
    create(streams, "a:t", "application/json")
    with pytest.raises(ThrottledError):
        streams.update_schema("a:t", b'{"schema":{"enum":["%b"]}}' % (b"x" * 10_000), answers.append)
    create(streams, "z", "application/json")
    streams.update_schema("z", b'{"schema":{}}', answers.append)
    assert len(answers) == 1


def test_jobs_with_a_history_count() -> None:
    engine = budgeted()
    put(engine, "a:q", type=TopicType.QUEUE)
    append(engine, "a:q", *range(1_000))
    answers: list[object] = []
    with pytest.raises(ThrottledError) as refused:
        for _ in range(100):
            engine.queues.claim("a:q", ClaimRequest(node="w", max=10), answers.append)
    assert over(refused) == "max_memory_bytes_per_key"
    delete(engine, "a:q", before_seq=900)
    engine.queues.claim("a:q", ClaimRequest(node="w", max=10), answers.append)


def test_the_count_of_kept_memory_is_what_a_recount_states(seed: int) -> None:
    dice, clock = random.Random(seed), ManualClock()
    engine = limited(clock, max_memory_bytes=LIMIT, max_memory_bytes_per_key=LIMIT // 2)
    names = ["a:1", "a:2", "b:1", "c:1", "z"]
    for name in names:
        put(engine, name, durability=EPHEMERAL if dice.random() < 0.5 else MEMORY, cap_records=dice.choice([0, 7]))
    for number in range(600):
        name, act = dice.choice(names), dice.random()
        if act < 0.8:
            key = {"key": f"{number}"} if dice.random() < 0.5 else {}
            with suppress(ThrottledError):
                append(engine, name, "x" * dice.randint(0, 200), **key)
        elif act < 0.9:
            delete(engine, name, before_seq=max(topic(engine, name).head - dice.randint(0, 5), 1))
        elif act < 0.95:
            clock.advance(dice.randint(0, 48 * 3_600_000))
        else:
            drop(engine, name)
            put(engine, name, durability=EPHEMERAL if dice.random() < 0.5 else MEMORY)
        if dice.random() < 0.05:
            engine.core.quotas.set_tenants(dice.sample([("a:",), ("a:", "b:"), ("c:",)], 2))
    memory = engine.core.memory
    for one in engine.core.topics.values():
        memory.note(one)
    assert memory.total_bytes == sum([kept_bytes(one) for one in engine.core.topics.values()])
    assert memory.total_bytes <= LIMIT
    for tenant in memory._tenants:
        concerned = [one for one in engine.core.topics.values() if one.name.startswith(tenant.prefixes)]
        assert tenant.kept_bytes == sum(map(kept_bytes, concerned))
