"""POST: bytes, JSON, keys, times, sequences, producers, closing."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.http.streams.conftest import append, create, offset_of, reason_of
from topics.streams.stream_state import decode_offset, encode_offset


def produce(http: httpx.Client, path: str, body: bytes, epoch: int, seq: int, **more: str) -> httpx.Response:
    return append(http, path, body, producer_id="p", producer_epoch=str(epoch), producer_seq=str(seq), **more)


def test_bytes_come_back_as_they_were_sent(http: httpx.Client, path: str) -> None:
    every = bytes(range(256))
    create(http, path, "application/octet-stream")
    answer = append(http, path, every, "application/octet-stream")
    assert (answer.status_code, answer.content) == (204, b"")
    append(http, path, every[::-1], "application/octet-stream")
    found = http.get(path)
    assert found.content == every + every[::-1]
    assert found.headers["content-type"] == "application/octet-stream"


def test_offsets_grow_as_texts(http: httpx.Client, path: str) -> None:
    offsets = [offset_of(create(http, path))] + [offset_of(append(http, path, b"x")) for _ in range(40)]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"a": 1.0}', b'[{"a": 1.0}]'), (b"[1, 2,3]", b"[1,2,3]"), (b"[[1,2],[3]]", b"[[1,2],[3]]"),
        (b"null", b"[null]"), (b' "x" ', b'["x"]'), (b"\n[ 1e2 ]\n", b"[1e2]"),
    ],
)  # fmt: skip
def test_json_is_kept_verbatim_and_one_array_is_taken_apart(
    http: httpx.Client, path: str, body: bytes, found: bytes
) -> None:
    create(http, path, "application/json")
    assert append(http, path, body, "application/json").status_code == 204
    answer = http.get(path)
    assert answer.content == found
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("body", [b"[]", b"[1,", b"{", b"\xff", b'["\xff"]', b"nope", b"[" * 5000])
def test_bad_json_changes_nothing(http: httpx.Client, path: str, body: bytes) -> None:
    before = offset_of(create(http, path, "application/json"))
    assert append(http, path, body, "application/json").status_code == 400
    assert offset_of(http.head(path)) == before


def test_checks_of_an_append_run_in_order(http: httpx.Client, path: str) -> None:
    assert append(http, path, b"x").status_code == 404
    create(http, path)
    assert http.post(path, content=b"").status_code == 400
    assert http.post(path, content=b"x", headers={"content-type": ""}).status_code == 400
    answer = append(http, path, b"{}", "application/json")
    assert (answer.status_code, reason_of(answer)) == (409, "stream_conflict")
    append(http, path, b"x", stream_closed="true")
    assert reason_of(append(http, path, b"{}", "application/json")) == "stream_closed"


def test_a_value_larger_than_a_record_may_be_is_too_large(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json")
    assert append(http, path, b'"' + b"x" * (1 << 20) + b'"', "application/json").status_code == 413


@pytest.mark.parametrize("repeats", [10_000, 40_000])
def test_an_entry_of_bytes_may_be_large_and_is_one_answer(http: httpx.Client, path: str, repeats: int) -> None:
    body = bytes(range(256)) * repeats
    create(http, path, "application/octet-stream", b"<")
    append(http, path, body, "application/octet-stream")
    append(http, path, b">", "application/octet-stream")
    found, offset, is_up_to_date = list[bytes](), "-1", False
    while not is_up_to_date:
        answer = http.get(path, params={"offset": offset})
        found.append(answer.content)
        offset, is_up_to_date = offset_of(answer), "stream-up-to-date" in answer.headers
        assert decode_offset(offset)[1:] == (len(found), 0)
    assert found == [b"<", body, b">"]
    # An offset inside the entry, as earlier releases returned it, stays valid.
    epoch = decode_offset(offset)[0]
    inside = http.get(path, params={"offset": encode_offset(epoch, 1, 1 << 20)})
    assert (inside.content, decode_offset(offset_of(inside))[1:]) == (body[1 << 20 :], (2, 0))
    polled = http.get(path, params={"offset": encode_offset(epoch, 1), "live": "long-poll"})
    assert (polled.content, decode_offset(offset_of(polled))[1:]) == (body, (2, 0))


def test_events_of_a_large_entry_end_with_one_offset_behind_it(http: httpx.Client, path: str) -> None:
    body = "é" * 1_200_000 + "end"
    create(http, path, "text/plain", b"a")
    assert append(http, path, body.encode(), "text/plain").status_code == 204
    append(http, path, b"z", "text/plain", stream_closed="true")
    with http.stream("GET", path, params={"offset": "-1", "live": "sse"}) as answer:
        text = answer.read().decode()
    events = [event.split("\n") for event in text.split("\n\n") if event]
    kinds = [lines[0].removeprefix("event: ") for lines in events]
    data = [lines[1].removeprefix("data:") for lines in events]
    offsets = [json.loads(one)["streamNextOffset"] for kind, one in zip(kinds, data, strict=True) if kind == "control"]
    assert [decode_offset(offset)[2] for offset in offsets] == [0] * len(offsets)
    assert "".join(one for kind, one in zip(kinds, data, strict=True) if kind == "data") == "a" + body + "z"
    assert "data data" in " ".join(kinds), "the entry came in several events"


def test_a_sequence_only_goes_up(http: httpx.Client, path: str) -> None:
    create(http, path)
    assert append(http, path, b"a", stream_seq="b").status_code == 204
    for stale in ("b", "a", "B"):
        answer = append(http, path, b"x", stream_seq=stale)
        assert (answer.status_code, reason_of(answer)) == (409, "sequence_conflict")
        assert (answer.headers["stream-expected-seq"], answer.headers["stream-received-seq"]) == ("b", stale)
    assert append(http, path, b"b", stream_seq="ba").status_code == 204
    empty = append(http, path, b"x", stream_seq="")
    assert (empty.status_code, empty.json()["error"]["detail"]["field"]) == (400, "Stream-Seq")
    assert http.get(path).text == "ab"


def test_a_sequence_is_reported_back_byte_by_byte(http: httpx.Client, path: str) -> None:
    create(http, path)
    last, stale = "ü2".encode(), "ü1".encode()
    for seq, status in ((last, 204), (stale, 409)):
        headers = [(b"content-type", b"text/plain"), (b"stream-seq", seq)]
        answer = http.post(path, content=b"x", headers=headers)
        assert answer.status_code == status
    reported = dict(answer.headers.raw)
    assert (reported[b"stream-expected-seq"], reported[b"stream-received-seq"]) == (last, stale)


def test_a_time_may_be_any_and_never_runs_back(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json")
    for hint in ("2020-01-01T00:00:00Z", "1577836800500000000", "2019-01-01T00:00:00Z", "2999-01-01T00:00:00Z"):
        assert append(http, path, b"1", "application/json", stream_timestamp=hint).status_code == 204
    append(http, path, b"1", "application/json")
    times = [record["$ts"] for record in http.post(f"/v0/topics/{name}/diff", json={}).json()["records"]]
    assert times[:3] == [1577836800000, 1577836800500, 1577836800500]
    assert times[3:] == [32_472_144_000_000] * 2, "and what comes behind it is no earlier"
    assert append(http, path, b"1", "application/json", stream_timestamp="yesterday").status_code == 400


def test_a_time_of_the_future_freezes_nothing(http: httpx.Client, name: str, path: str) -> None:
    create(http, path, "application/json")
    assert append(http, path, b"1", "application/json", stream_timestamp="2999-01-01T00:00:00Z").status_code == 204
    assert append(http, path, b"2", "application/json").status_code == 204
    topic = http.get(f"/v0/topics/{name}").json()
    assert topic["last_write_ts"] < 4_000_000_000_000
    assert http.post(f"/v0/topics/{name}-other", json={"records": [{"data": 1}]}).is_success
    (other,) = http.post(f"/v0/topics/{name}-other/diff", json={}).json()["records"]
    assert other["$ts"] < 4_000_000_000_000
    late = http.get(path, params={"since": "2998-01-01T00:00:00Z"})
    assert late.json() == [1, 2]


# Closing


@pytest.mark.parametrize("word", ["true", "TRUE", "True"])
def test_closing_is_final_and_may_be_repeated(http: httpx.Client, path: str, word: str) -> None:
    create(http, path, body=b"a")
    closed = http.post(path, headers={"stream-closed": word})
    assert (closed.status_code, closed.headers["stream-closed"]) == (204, "true")
    assert http.post(path, headers={"stream-closed": word}).status_code == 204
    late = append(http, path, b"x")
    assert (late.status_code, late.headers["stream-closed"]) == (409, "true")
    assert offset_of(late) == offset_of(closed)
    assert append(http, path, b"x", stream_closed="true").status_code == 409


@pytest.mark.parametrize("word", ["yes", "1", "false"])
def test_only_the_word_itself_closes(http: httpx.Client, path: str, word: str) -> None:
    create(http, path)
    assert append(http, path, b"x", stream_closed=word).status_code == 204
    assert "stream-closed" not in http.head(path).headers


def test_the_last_append_and_the_end_are_one(http: httpx.Client, path: str) -> None:
    create(http, path)
    answer = append(http, path, b"end", stream_closed="true")
    assert (answer.status_code, answer.headers["stream-closed"]) == (204, "true")
    found = http.get(path)
    assert (found.text, found.headers["stream-closed"]) == ("end", "true")


# Producers


def test_a_producer_appends_each_batch_once(http: httpx.Client, path: str) -> None:
    create(http, path)
    first = produce(http, path, b"a", 0, 0)
    assert (first.status_code, first.headers["producer-epoch"], first.headers["producer-seq"]) == (200, "0", "0")
    assert produce(http, path, b"b", 0, 1).status_code == 200
    again = produce(http, path, b"a", 0, 0)
    assert (again.status_code, again.headers["producer-seq"]) == (204, "1")
    assert http.get(path).text == "ab"


def test_a_gap_reports_what_is_missing(http: httpx.Client, path: str) -> None:
    create(http, path)
    for answer, expected, received in (
        (produce(http, path, b"x", 0, 2), "0", "2"),
        (produce(http, path, b"a", 0, 0) and produce(http, path, b"x", 0, 3), "1", "3"),
    ):
        assert (answer.status_code, reason_of(answer)) == (409, "producer_gap")
        assert answer.headers["producer-expected-seq"] == expected
        assert answer.headers["producer-received-seq"] == received


def test_a_new_epoch_fences_the_old_one(http: httpx.Client, path: str) -> None:
    create(http, path)
    produce(http, path, b"a", 0, 0)
    assert produce(http, path, b"x", 1, 1).status_code == 400
    assert produce(http, path, b"b", 1, 0).status_code == 200
    fenced = produce(http, path, b"x", 0, 1)
    assert (fenced.status_code, fenced.headers["producer-epoch"]) == (403, "1")


@pytest.mark.parametrize(
    "headers",
    [
        {"producer_id": "p"}, {"producer_id": "p", "producer_epoch": "0"}, {"producer_epoch": "0", "producer_seq": "0"},
        {"producer_id": "", "producer_epoch": "0", "producer_seq": "0"},
        {"producer_id": "p", "producer_epoch": "-1", "producer_seq": "0"},
        {"producer_id": "p", "producer_epoch": "0", "producer_seq": "01"},
        {"producer_id": "p", "producer_epoch": "0", "producer_seq": "9007199254740992"},
        {"producer_id": "p", "producer_epoch": "1.0", "producer_seq": "0"},
    ],
)  # fmt: skip
def test_half_a_producer_is_none(http: httpx.Client, path: str, headers: dict[str, str]) -> None:
    create(http, path)
    assert append(http, path, b"x", **headers).status_code == 400


def test_a_repetition_is_recognised_before_the_sequence_is(http: httpx.Client, path: str) -> None:
    create(http, path)
    produce(http, path, b"a", 0, 0, stream_seq="5")
    assert produce(http, path, b"a", 0, 0, stream_seq="5").status_code == 204
    assert produce(http, path, b"b", 0, 1, stream_seq="4").status_code == 409
    assert produce(http, path, b"b", 0, 1, stream_seq="6").status_code == 200


def test_a_producer_may_close_and_repeat_itself(http: httpx.Client, path: str) -> None:
    create(http, path)
    produce(http, path, b"a", 0, 0)
    assert produce(http, path, b"b", 0, 1, stream_closed="true").status_code == 200
    assert produce(http, path, b"b", 0, 1, stream_closed="true").status_code == 204
    assert produce(http, path, b"a", 0, 0).status_code == 204
    late = produce(http, path, b"c", 0, 2)
    assert (late.status_code, late.headers["stream-closed"]) == (409, "true")


def test_the_same_batch_many_times_at_once_is_there_once(http: httpx.Client, path: str) -> None:
    create(http, path)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: produce(http, path, b"once", 0, 0).status_code, range(24)))
    assert sorted(answers) == [200] + [204] * 23
    assert http.get(path).text == "once"


def test_many_writers_at_once_lose_nothing(http: httpx.Client, path: str) -> None:
    create(http, path, "application/json")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: append(http, path, b"%d" % n, "application/json"), range(200)))
    assert {answer.status_code for answer in answers} == {204}
    assert len({offset_of(answer) for answer in answers}) == 200
    assert sorted(http.get(path).json()) == list(range(200))
