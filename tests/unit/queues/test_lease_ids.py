import pytest

from topics.model.errors import InvalidRequestError
from topics.queues.leases import format_lease_id, parse_lease_id


@pytest.mark.parametrize("token", [0, 1, 2**64 - 1])
def test_a_lease_id_is_read_as_it_was_written(token: int) -> None:
    assert parse_lease_id(format_lease_id(token)) == token


def test_an_empty_lease_id_fences_nothing() -> None:
    assert parse_lease_id("") is None


@pytest.mark.parametrize(
    "text", ["x", "lease_", "lease_xyz", "7f3a", "lease_+1", "lease_" + "0" * 17, "Lease_1", "lease_A"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_lease_id(text)
