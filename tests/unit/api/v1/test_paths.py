import pytest

from topics.api.errors import NotFoundError
from topics.api.v1.paths import StreamPath, read_name, split_path
from topics.core.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a", StreamPath("a")), ("a/b/c", StreamPath("a/b/c")), ("a%2Fb", StreamPath("a/b")), ("a/", StreamPath("a")),
        ("a/_schema", StreamPath("a", "_schema")), ("a/b/_details/", StreamPath("a/b", "_details")),
        ("a/pk/k", StreamPath("a", "pk", "k")), ("a/b/pk/x%2Fy", StreamPath("a/b", "pk", "x/y")),
        ("pk/k", StreamPath("pk/k")), ("_schema", StreamPath("_schema")), ("a%2F_schema", StreamPath("a/_schema")),
        ("%C3%BC", StreamPath("ü")),
    ],
)  # fmt: skip
def test_a_path_is_a_name_and_perhaps_a_part_of_it(path: str, found: StreamPath) -> None:
    assert split_path(f"/v1/stream/{path}") == found


@pytest.mark.parametrize("path", ["", "/", "%FF"])
def test_a_path_that_names_nothing(path: str) -> None:
    with pytest.raises(NotFoundError):
        split_path(f"/v1/stream/{path}")


def test_a_source_is_named_by_its_path_or_its_address() -> None:
    assert read_name("/v1/stream/a/b") == read_name("https://host:1/v1/stream/a/b?x=y") == "a/b"
    for bad in ("a", "/v1/streams/a", "http://host", "/v0/topics/a"):
        with pytest.raises(InvalidRequestError):
            read_name(bad)
