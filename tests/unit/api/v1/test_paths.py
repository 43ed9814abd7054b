import pytest

from topics.api.error_responses import NotFoundError
from topics.api.v1.protocol import StreamPath, read_name, split_path
from topics.model.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a", StreamPath("a")), ("a/b/c", StreamPath("a/b/c")), ("a%2Fb", StreamPath("a/b")), ("a/", StreamPath("a")),
        ("a/_schema", StreamPath("a", "_schema")), ("a/b/_details/", StreamPath("a/b", "_details")),
        ("a/pk/k", StreamPath("a", "pk", "k")), ("a/b/pk/x%2Fy", StreamPath("a/b", "pk", "x/y")),
        ("pk/k", StreamPath("pk/k")), ("_schema", StreamPath("_schema")), ("_x/y", StreamPath("_x/y")),
        ("a/_schema/b", StreamPath("a/_schema/b")), ("a/_new", StreamPath("a", "_new")), ("a/pk", StreamPath("a/pk")),
        ("a/_schema/infer", StreamPath("a", "_schema/infer")), ("_schema/infer", StreamPath("_schema/infer")),
        ("a/b/_schema/infer/", StreamPath("a/b", "_schema/infer")), ("a_schema/infer", StreamPath("a_schema/infer")),
        ("a/pk/", StreamPath("a/pk")), ("a/pk/_x", StreamPath("a", "pk", "_x")),
        ("a/pk/x/pk/y", StreamPath("a", "pk", "x/pk/y")), ("a/touch/meta", StreamPath("a", "touch/meta")),
        ("a/touch/templates/activate/", StreamPath("a", "touch/templates/activate")),
        ("touch/x", StreamPath("touch/x")),
        ("a/b/touch/pk/x", StreamPath("a/b", "touch/pk/x")), ("%C3%BC", StreamPath("ü")),
        ("a%252Fb", StreamPath("a%2Fb")), ("a//b", StreamPath("a//b")),
    ],
)  # fmt: skip
def test_a_path_is_a_name_and_perhaps_a_part_of_it(path: str, found: StreamPath) -> None:
    assert split_path(f"/v1/stream/{path}") == found
    assert split_path(f"/v1/stream/{path.replace('/', '%2F')}") == found
    assert split_path(f"/v1/stream/{path.replace('/', '%2f')}") == found


def test_a_key_may_end_with_a_slash_that_is_spelled_out() -> None:
    """A slash at the end of a path is ignored; an encoded one belongs to the key."""
    assert split_path("/v1/stream/a/pk/x%2F") == StreamPath("a", "pk", "x/")
    assert split_path("/v1/stream/a/pk/x/") == StreamPath("a", "pk", "x")


@pytest.mark.parametrize(
    "path", ["", "/", "%FF", "%2F", "/_schema", "%2F_schema", "__ds", "__ds%2Fsubscriptions%2Fa", "__ds/pk/x"]
)
def test_a_path_that_names_nothing(path: str) -> None:
    with pytest.raises(NotFoundError):
        split_path(f"/v1/stream/{path}")


def test_a_source_is_named_by_its_path_or_its_address() -> None:
    assert read_name("/v1/stream/a/b") == read_name("https://host:1/v1/stream/a/b?x=y") == "a/b"
    assert read_name("/v1/stream/a%2Fb") == "a/b"
    for bad in ("a", "/v1/streams/a", "http://host", "/v0/topics/a", "/v1/stream/a/_schema", "/v1/stream/a%2Fpk%2Fx"):
        with pytest.raises(InvalidRequestError):
            read_name(bad)
