"""Forks: inherited entries, kept entries, and the rest of the source after its forks."""

import httpx
import pytest

from tests.http.streams.conftest import append, create, offset_of, reason_of


def fork(http: httpx.Client, path: str, source: str, **headers: str) -> httpx.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return http.put(path, headers={"stream-forked-from": source, **named})


def test_a_fork_has_what_its_source_had_and_goes_its_own_way(http: httpx.Client, path: str) -> None:
    create(http, path, body=b"a")
    middle = offset_of(append(http, path, b"b"))
    append(http, path, b"c")
    assert fork(http, f"{path}-f", path, stream_fork_offset=middle).status_code == 201
    append(http, f"{path}-f", b"x")
    assert http.get(f"{path}-f").text == "abx"
    assert http.get(path).text == "abc"
    assert http.get(f"{path}-f").headers["content-type"] == "text/plain"


def test_offsets_up_to_the_fork_are_those_of_the_source_and_no_others(http: httpx.Client, path: str) -> None:
    create(http, path, body=b"a")
    first = offset_of(http.get(path))
    append(http, path, b"b")
    beyond = offset_of(http.get(path))
    fork(http, f"{path}-f", path, stream_fork_offset=first)
    own = offset_of(append(http, f"{path}-f", b"x"))
    assert http.get(f"{path}-f", params={"offset": first}).text == "x"
    assert own > first
    assert http.get(f"{path}-f", params={"offset": beyond}).status_code == 410
    assert http.get(path, params={"offset": own}).status_code == 410


def test_a_fork_of_a_fork_reads_through(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json", b"[1,2]")
    fork(http, f"{path}-f", path)
    append(http, f"{path}-f", b"[3,4]", "application/json")
    fork(http, f"{path}-g", f"{path}-f")
    append(http, f"{path}-g", b"5", "application/json")
    assert http.get(f"{path}-g").json() == [1, 2, 3, 4, 5]
    http.delete(path)
    http.delete(f"{path}-f")
    assert http.get(f"{path}-g").json() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("sub_offset", "found"), [("0", ""), ("3", "sec"), ("6", "second")])
def test_a_fork_may_begin_inside_an_entry(http: httpx.Client, path: str, sub_offset: str, found: str) -> None:
    first = offset_of(create(http, path, body=b"first"))
    append(http, path, b"second")
    made = fork(http, f"{path}-f", path, stream_fork_offset=first, stream_fork_sub_offset=sub_offset)
    assert made.status_code == 201
    assert http.get(f"{path}-f").text == "first" + found
    again = fork(http, f"{path}-f", path, stream_fork_offset=first, stream_fork_sub_offset=sub_offset)
    assert again.status_code == 200
    other = fork(http, f"{path}-f", path, stream_fork_offset=first, stream_fork_sub_offset="1")
    assert other.status_code == 409


def test_values_of_an_append_are_counted_one_by_one(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json", b"[1,2,3]")
    append(http, path, b"[4,5]", "application/json")
    fork(http, f"{path}-f", path, stream_fork_offset="-1", stream_fork_sub_offset="2")
    assert http.get(f"{path}-f").json() == [1, 2]
    assert fork(http, f"{path}-g", path, stream_fork_offset="-1", stream_fork_sub_offset="4").status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"stream_fork_offset": "9999999999999999_9999999999999999"}, 400),
        ({"stream_fork_offset": "12"}, 400),
        ({"stream_fork_sub_offset": "1"}, 400),
        ({"stream_fork_offset": "-1", "stream_fork_sub_offset": "9"}, 400),
        ({"stream_fork_offset": "-1", "stream_fork_sub_offset": "-1"}, 400),
        ({"content_type": "application/json"}, 409),
    ],
)
def test_a_refused_fork_holds_nothing_back(http: httpx.Client, path: str, headers: dict[str, str], status: int) -> None:
    create(http, path, body=b"abc")
    assert fork(http, f"{path}-f", path, **headers).status_code == status
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == 404, "nothing reads from it, so nothing of it is left"


def test_a_source_that_is_deleted_stays_for_its_forks_alone(http: httpx.Client, path: str) -> None:
    end = offset_of(create(http, path, body=b"abc"))
    fork(http, f"{path}-f", path)
    deleted = http.delete(path)
    assert (deleted.status_code, offset_of(deleted)) == (204, end)
    for answer in (http.get(path), append(http, path, b"x"), http.delete(path)):
        assert (answer.status_code, reason_of(answer)) == (410, "stream_gone")
    assert http.head(path).status_code == 410
    assert create(http, path).status_code == 409
    assert fork(http, f"{path}-g", path).status_code == 409
    assert http.get(f"{path}-f").text == "abc"
    assert http.delete(f"{path}-f").status_code == 204
    assert create(http, path).status_code == 201, "with the last fork the name is free"


def test_a_fork_inherits_the_lifetime_unless_it_has_its_own(http: httpx.Client, path: str) -> None:
    create(http, path, stream_ttl="3600")
    fork(http, f"{path}-f", path)
    assert http.head(f"{path}-f").headers["stream-ttl"] == "3600"
    fork(http, f"{path}-g", path, stream_ttl="60")
    assert http.head(f"{path}-g").headers["stream-ttl"] == "60"


def test_neither_producers_nor_sequences_nor_the_end_are_inherited(http: httpx.Client, path: str) -> None:
    create(http, path)
    producer = {"producer_id": "p", "producer_epoch": "3", "producer_seq": "0"}
    append(http, path, b"a", stream_seq="9", stream_closed="true", **producer)
    fork(http, f"{path}-f", path)
    assert "stream-closed" not in http.head(f"{path}-f").headers
    answer = append(http, f"{path}-f", b"b", stream_seq="1", producer_id="p", producer_epoch="0", producer_seq="0")
    assert answer.status_code == 200
