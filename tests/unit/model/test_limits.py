import pytest

from topics.model.limits import (
    MAX_CLAIM_JITTER_MS,
    MAX_LEASE_MS,
    MAX_PRIORITY,
    MIN_LEASE_MS,
    MIN_PRIORITY,
    Limits,
    clamp_claim_jitter_ms,
    clamp_lease_ms,
)

DEFAULTS = {
    "max_topics": 100_000,
    "max_topics_per_key": 50_000,
    "max_routers_per_key": 5_000,
    "max_consumers_per_topic": 1_000,
    "max_consumers_per_key": 10_000,
    "max_schedules": 100_000,
    "max_schedules_per_key": 10_000,
    "max_bytes_per_key": 0,
    "max_memory_bytes": 384 << 20,
    "max_memory_bytes_per_key": 192 << 20,
    "max_fanout_bytes": 48 << 20,
    "max_fanout_bytes_per_key": 32 << 20,
    "max_transaction_ids_per_key": 5_000,
    "max_routers": 10_000,
    "max_total_bytes": 0,
    "max_batch_records": 10_000,
    "max_record_bytes": 1_048_576,
    "max_meta_bytes": 16_384,
    "max_meta_keys": 64,
    "max_tag_bytes": 256,
    "max_node_bytes": 128,
    "max_idempotency_key_chars": 256,
    "max_idempotency_keys": 2_000_000,
    "max_limit": 1_000,
    "default_limit": 256,
    "max_batch_bytes": 8_388_608,
    "default_batch_bytes": 1_048_576,
    "max_wait_ms": 30_000,
    "max_claim": 1_000,
    "strict_config": False,
    "max_transactions": 1_000,
    "max_transaction_ids": 10_000,
    "max_transaction_parts": 10_000,
    "max_transaction_records": 5_000_000,
    "max_transaction_bytes": 268_435_456,
    "max_staged_bytes": 1_073_741_824,
    "transaction_timeout_ms": 3_600_000,
    "transaction_retention_ms": 604_800_000,
}


@pytest.mark.parametrize("field", Limits.__struct_fields__)
def test_each_default(field: str) -> None:
    assert getattr(Limits(), field) == DEFAULTS[field]


def test_fixed_bounds() -> None:
    assert (MIN_LEASE_MS, MAX_LEASE_MS, MAX_CLAIM_JITTER_MS) == (100, 86_400_000, 5_000)
    assert (MIN_PRIORITY, MAX_PRIORITY) == (-1_000, 1_000)


def test_limits_cannot_change_under_a_running_server() -> None:
    with pytest.raises(AttributeError):
        Limits().max_topics = 1  # type: ignore[misc]


@pytest.mark.parametrize(("asked", "given"), [(0, 256), (1, 1), (1000, 1000), (1001, 1000), (2**64, 1000)])
def test_limit_of_a_read(asked: int, given: int) -> None:
    assert Limits().clamp_limit(asked) == given


def test_a_default_above_the_maximum_gives_the_maximum() -> None:
    assert Limits(max_limit=10).clamp_limit(0) == 10


@pytest.mark.parametrize(("asked", "given"), [(0, 1 << 20), (1, 1), (8 << 20, 8 << 20), ((8 << 20) + 1, 8 << 20)])
def test_bytes_of_a_read(asked: int, given: int) -> None:
    assert Limits().clamp_batch_bytes(asked) == given


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (30_000, 30_000), (30_001, 30_000)])
def test_wait_of_a_read(asked: int, given: int) -> None:
    assert Limits().clamp_wait_ms(asked) == given


@pytest.mark.parametrize(("asked", "given"), [(0, 100), (99, 100), (100, 100), (86_400_001, 86_400_000)])
def test_lease(asked: int, given: int) -> None:
    assert clamp_lease_ms(asked) == given


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (5_000, 5_000), (5_001, 5_000)])
def test_jitter(asked: int, given: int) -> None:
    assert clamp_claim_jitter_ms(asked) == given
