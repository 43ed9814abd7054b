from collections.abc import Iterator

import pytest

from tests.s3 import S3Server


@pytest.fixture(scope="package")
def s3() -> Iterator[S3Server]:
    """One server for all tests of the package; each takes its own bucket."""
    with S3Server() as server:
        yield server


@pytest.fixture
def credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
