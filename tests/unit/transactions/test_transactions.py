"""Begin, stage, commit, abort: the visibility of records, their owner, and that nothing is done twice."""

import pytest

from tests.unit.conftest import (
    DISK,
    EPHEMERAL,
    FSYNC,
    after_power_cut,
    append,
    ask_append,
    ask_drop,
    ask_put,
    checkpoint,
    delete,
    drop,
    flush,
    hold,
    killed,
    logged,
    one,
    open_engine,
    put,
    seqs,
    topic,
    values,
)
from tests.unit.transactions.conftest import abort, anywhere, ask_commit, begin, commit, ref, stage
from topics.engine.read import ReadRequest
from topics.engine.results import PutResult
from topics.engine.topic import Topic
from topics.log.catalog_files import read_catalog
from topics.log.frame import FrameKind
from topics.log.layout import Layout
from topics.model.errors import (
    InvalidRequestError,
    ReadOnlyError,
    StreamClosedError,
    ThrottledError,
    TopicFullError,
    TopicNotFoundError,
    TopicsError,
    TransactionBusyError,
    TransactionFencedError,
    TransactionForeignError,
    TransactionIncompleteError,
    TransactionNotFoundError,
    TransactionSequenceError,
    TransactionTooLargeError,
)
from topics.model.limits import Limits
from topics.model.records import Record
from topics.model.topic_config import Discard, TopicConfigPatch
from topics.testing import FakeDisk, Fault, FaultPlan, FaultyFileSystem, ManualClock
from topics.transactions import commit as committing
from topics.transactions.transaction_state import TOPIC_NAME, BeginRequest, TransactionResult

# Visible records


@pytest.mark.parametrize("shards", [1, 3])
def test_nothing_is_seen_before_the_commit_and_everything_after_it(shards: int) -> None:
    engine = open_engine(wal_shards=shards)
    for name in ("a", "b", "c"):
        put(engine, name)
    append(engine, "a", "first")
    begin(engine)
    stage(engine, "a", 1, 2)
    stage(engine, "b", Record.of({"x": 1}, tag="t", node="n", meta={"m": 2}))
    stage(engine, "c", 4, part="last")
    assert [values(engine, name) for name in ("a", "b", "c")] == [["first"], [], []]
    assert [info.topic for info in engine.list_topics()] == ["a", "b", "c"]
    result = commit(engine)
    assert [values(engine, name) for name in ("a", "b", "c")] == [["first", 1, 2], [{"x": 1}], [4]]
    (record,) = engine.read_now("b", _tagged()).records()
    assert (record["$tag"], record["$node"], record["meta"]) == ("t", "n", {"m": 2})
    assert [(p.topic, p.first_seq, p.last_seq, p.count) for p in result.topics] == [
        ("a", 2, 3, 2), ("b", 1, 1, 1), ("c", 1, 1, 1),
    ]  # fmt: skip
    assert (result.records, result.deduped) == (4, False)


def _tagged() -> ReadRequest:
    return ReadRequest(from_seq=0, limit=10, include_tags=True)


def test_one_shard_needs_one_write_and_three_need_two_steps() -> None:
    for shards, extra in ((1, 1), (3, 3)):
        engine = open_engine(wal_shards=shards)
        # Topics 1 and 2 and the books are all in different shards of three.
        put(engine, "a")
        put(engine, "b")
        put(engine, "c")
        begin(engine)
        stage(engine, "a", 1)
        stage(engine, "b", 1)
        before = sum(shard.writer.syncs for shard in engine.core.shards)
        commit(engine)
        assert sum(shard.writer.syncs for shard in engine.core.shards) - before == extra


def test_readers_of_several_topics_see_all_of_it_in_one_tick() -> None:
    engine = open_engine(wal_shards=3)
    for name in ("a", "b", "c"):
        put(engine, name)
    begin(engine)
    for name in ("a", "b", "c"):
        stage(engine, name, name)
    seen: list[list[object]] = []
    released = engine.core.path.held.release

    def release() -> None:
        seen.append([value for name in ("a", "b", "c") for value in values(engine, name)])
        released()
        seen.append([value for name in ("a", "b", "c") for value in values(engine, name)])

    engine.core.path.held.release = release  # type: ignore[method-assign]
    commit(engine)
    assert seen == [[], ["a", "b", "c"]]


def test_the_catalog_and_the_totals_of_others_know_nothing_of_what_is_staged() -> None:
    disk = FakeDisk()
    engine = open_engine(disk, segment_max_events=2)
    begin(engine)
    stage(engine, "a", 1, 2, 3)
    assert checkpoint(engine)
    assert topic(engine, TOPIC_NAME).segments, "the test would prove nothing"
    catalog = read_catalog(disk, Layout("data"))
    assert catalog is not None and catalog.topics == []
    with pytest.raises(TopicNotFoundError):
        values(engine, TOPIC_NAME)
    with pytest.raises(TopicNotFoundError):
        append(engine, TOPIC_NAME, "x", create=True)


# Attempts, parts and sequences


def test_a_new_attempt_replaces_what_the_old_one_staged_and_fences_it() -> None:
    engine = open_engine()
    old = begin(engine).attempt
    stage(engine, "a", "old")
    new = begin(engine).attempt
    assert new != old
    with pytest.raises(TransactionFencedError):
        stage(engine, "a", "late", ref=ref(attempt=old))
    with pytest.raises(TransactionFencedError):
        commit(engine, ref(attempt=old))
    stage(engine, "a", "new", ref=ref(attempt=new))
    commit(engine, ref(attempt=new))
    assert values(engine, "a") == ["new"]
    assert topic(engine, TOPIC_NAME).live_count == 0


def test_those_who_name_the_attempt_share_it() -> None:
    engine = open_engine()
    hold(engine)
    answers: list[object] = []
    for _ in range(2):
        engine.transactions.begin(_begin_request("run"), anywhere, answers.append)
    flush(engine)
    begin(engine, attempt="run")
    stage(engine, "a", 1, part="one", ref=ref(attempt="run"))
    joined = begin(engine, attempt="run")
    assert (joined.parts, joined.records) == (1, 1)
    stage(engine, "a", 2, part="two", ref=ref(attempt="run"))
    commit(engine, ref(attempt="run"))
    assert values(engine, "a") == [1, 2]


def _begin_request(attempt: str) -> BeginRequest:
    return BeginRequest(id="t", sequence=1, attempt=attempt)


def test_a_part_that_is_staged_again_is_replaced_in_its_place() -> None:
    engine = open_engine()
    begin(engine)
    stage(engine, "a", 1, part="one")
    stage(engine, "a", 2, part="two")
    again = stage(engine, "a", 10, 11, part="one")
    assert (again.count, again.records) == (2, 3)
    commit(engine)
    assert values(engine, "a") == [10, 11, 2]


def test_a_commit_may_name_its_parts_and_their_order() -> None:
    engine = open_engine()
    begin(engine)
    for number in range(4):
        stage(engine, "a", number, part=f"p{number}")
    with pytest.raises(TransactionIncompleteError):
        commit(engine, parts=["p1", "p9"])
    assert commit(engine, parts=["p3", "p1"]).records == 2
    assert values(engine, "a") == [3, 1]


def test_a_committed_sequence_is_never_done_again() -> None:
    engine = open_engine()
    begin(engine)
    stage(engine, "a", 1)
    first = commit(engine)
    drop(engine, "a")
    again = begin(engine)
    assert (again.state, again.deduped, again.topics) == ("committed", True, first.topics)
    assert commit(engine).deduped
    with pytest.raises(TransactionSequenceError):
        stage(engine, "a", 2)
    with pytest.raises(TransactionSequenceError):
        begin(engine, sequence=0)
    assert "a" not in engine.core.directory
    begin(engine, sequence=2)
    stage(engine, "a", 2, ref=ref(sequence=2))
    assert not commit(engine, ref(sequence=2)).deduped


def test_a_later_sequence_takes_the_place_of_an_open_one() -> None:
    engine = open_engine()
    begin(engine, sequence=3)
    stage(engine, "a", "three", ref=ref(sequence=3))
    with pytest.raises(TransactionFencedError):
        begin(engine, sequence=2)
    begin(engine, sequence=4)
    with pytest.raises(TransactionFencedError):
        commit(engine, ref(sequence=3))
    assert commit(engine, ref(sequence=4)).records == 0
    assert engine.transactions.find("t", "", anywhere).sequence == 4


def test_an_aborted_one_leaves_nothing() -> None:
    engine = open_engine()
    begin(engine)
    stage(engine, "a", 1)
    assert abort(engine).state == "aborted"
    with pytest.raises(TransactionNotFoundError):
        commit(engine)
    assert topic(engine, TOPIC_NAME).live_count == engine.core.total_bytes == 0
    assert "a" not in engine.core.directory


def test_commits_that_come_while_one_is_on_its_way_are_answered_with_it() -> None:
    engine = open_engine()
    begin(engine)
    stage(engine, "a", 1)
    put(engine, "a")
    hold(engine)
    one, two = ask_commit(engine), ask_commit(engine)
    for refused in (lambda: begin(engine), lambda: stage(engine, "a", 2), lambda: abort(engine)):
        with pytest.raises(TransactionBusyError):
            refused()
    flush(engine)
    (first,), (second,) = one, two
    assert isinstance(first, TransactionResult) and isinstance(second, TransactionResult)
    assert (first.deduped, second.deduped) == (False, True)
    assert values(engine, "a") == [1]


def test_an_open_transaction_is_its_key_s_own() -> None:
    engine = open_engine()
    begin(engine, owner="one")
    other = ref(owner="two")
    for refused in (
        lambda: begin(engine, owner="two"),
        lambda: stage(engine, "a", 1, ref=other),
        lambda: commit(engine, other),
        lambda: abort(engine, other),
        lambda: engine.transactions.find("t", "two", anywhere),
    ):
        with pytest.raises(TransactionForeignError):
            refused()
    stage(engine, "a", 1, ref=ref(owner="one"))
    commit(engine, ref(owner="one"))
    assert begin(engine, owner="two").state == "committed"


def test_who_may_not_write_to_a_topic_neither_commits_nor_learns_of_it() -> None:
    engine = open_engine()
    begin(engine)
    stage(engine, "a", 1)

    def nowhere(name: str) -> None:
        raise TopicNotFoundError(name)

    with pytest.raises(TopicNotFoundError):
        engine.transactions.commit(ref(), None, nowhere, lambda outcome: None)
    commit(engine)
    with pytest.raises(TopicNotFoundError):
        engine.transactions.begin(BeginRequest(id="t", sequence=1), nowhere, lambda outcome: None)


@pytest.mark.parametrize("bad", ["", "-x", "a/b", "x" * 256, "ä"])
def test_names_are_as_of_topics(bad: str) -> None:
    engine = open_engine()
    with pytest.raises(InvalidRequestError):
        begin(engine, bad)
    with pytest.raises(InvalidRequestError):
        begin(engine, attempt=bad)
    begin(engine)
    with pytest.raises(InvalidRequestError):
        stage(engine, "a", 1, part=bad or "/")


# Topics


def test_a_topic_that_is_missing_is_made_by_the_commit() -> None:
    engine = open_engine()
    begin(engine)
    stage(engine, "a", 1, config=TopicConfigPatch(cap_records=7))
    stage(engine, "b", 1)
    with pytest.raises(TopicNotFoundError):
        stage(engine, "c", 1, create=False)
    assert "a" not in engine.core.directory
    commit(engine)
    assert topic(engine, "a").config.cap_records == 7
    assert values(engine, "b") == [1]


@pytest.mark.parametrize("meanwhile", ["again", "another is made", "on its way"])
def test_a_topic_that_somebody_else_makes_meanwhile_keeps_its_config(meanwhile: str) -> None:
    engine = open_engine()
    begin(engine)
    if meanwhile == "again":
        put(engine, "t")
    stage(engine, "t", 1)
    if meanwhile == "another is made":
        stage(engine, "u", 2)
    hold(engine)
    if meanwhile == "again":
        ask_drop(engine, "t")
    if meanwhile == "another is made":
        outcome = ask_commit(engine)
        made = {"t", "u"} - set(engine.core.directory.resident)
        asked = [ask_put(engine, name, durability=FSYNC, cap_records=7) for name in made]
    else:
        made = {"t"}
        asked = [ask_put(engine, "t", durability=FSYNC, cap_records=7)]
        outcome = ask_commit(engine)
    flush(engine)
    assert [one(answers, PutResult).created for answers in asked] == [True]
    assert one(outcome, TransactionResult).state == "committed"
    assert values(engine, "t") == [1]
    assert [engine.info(name).config.cap_records for name in made] == [7]


def test_a_topic_that_refuses_refuses_all_of_it_and_the_transaction_stays() -> None:
    engine = open_engine()
    put(engine, "a")
    put(engine, "full", cap_records=2, discard=Discard.REJECT)
    append(engine, "full", 1)
    begin(engine)
    stage(engine, "a", 1)
    stage(engine, "full", 2, 3)
    with pytest.raises(TopicFullError):
        commit(engine)
    assert (values(engine, "a"), topic(engine, "a").staged_head) == ([], 0)
    delete(engine, "full", before_seq=2)
    assert commit(engine).records == 3


def test_a_guard_sees_the_records_of_a_commit() -> None:
    engine = open_engine()
    put(engine, "a")
    begin(engine)
    stage(engine, "a", "good")
    seen: list[object] = []

    class Picky:
        def check_append(self, topic: Topic) -> None: ...

        def admit(self, topic: Topic, records: object, moved: bool, prepared: object = None) -> None:
            found = [bytes(record.data) for record in records()]  # type: ignore[operator]
            seen.extend(found)
            if found and len(seen) == 1:
                raise StreamClosedError(topic.name)

        def hides(self, topic: Topic) -> bool:
            return False

    topic(engine, "a").guard = Picky()  # type: ignore[assignment]
    with pytest.raises(StreamClosedError):
        commit(engine)
    commit(engine)
    assert seen == [b'"good"', b'"good"']


def test_staged_bytes_count_once_against_the_quota() -> None:
    engine = open_engine(limits=Limits(max_total_bytes=10))
    put(engine, "a")
    begin(engine)
    stage(engine, "a", "123456")
    with pytest.raises(ThrottledError):
        append(engine, "a", "123")
    with pytest.raises(ThrottledError):
        stage(engine, "a", "123")
    commit(engine)
    assert (engine.core.total_bytes, engine.core.staged_bytes) == (8, 0)


# In rounds


def test_a_large_one_is_prepared_in_rounds_and_published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "_ROUND_BYTES", 6)
    engine = open_engine(wal_shards=3)
    put(engine, "a", durability=FSYNC)
    put(engine, "b", durability=DISK)
    begin(engine)
    for number in range(6):
        stage(engine, "a" if number % 2 else "b", 100 + number)
    hold(engine)
    answers = ask_commit(engine)
    between = []
    while not answers:
        between += [ask_append(engine, "a", "between")]
        assert "between" not in values(engine, "a")
        assert 101 not in values(engine, "a")
        for shard in engine.core.shards:
            shard.committer.flush()  # type: ignore[attr-defined]
    flush(engine)
    assert [value for value in values(engine, "a") if value != "between"] == [101, 103, 105]
    assert values(engine, "b") == [100, 102, 104]
    assert len(between) > 2
    assert all(len(reported) == 1 for reported in between)
    (result,) = answers
    assert isinstance(result, TransactionResult)
    assert {placed.topic: placed.count for placed in result.topics} == {"a": 3, "b": 3}
    assert seqs(engine, "a") == list(range(1, 4 + len(between)))


def test_a_large_part_is_taken_apart_and_published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "_ROUND_BYTES", 6)
    monkeypatch.setattr(committing, "_PIECE_RECORDS", 3)
    engine = open_engine(wal_shards=3)
    put(engine, "a", durability=FSYNC)
    begin(engine)
    stage(engine, "a", *range(100, 110))
    hold(engine)
    answers = ask_commit(engine)
    while not answers:
        assert values(engine, "a") == []
        for shard in engine.core.shards:
            shard.committer.flush()  # type: ignore[attr-defined]
    assert values(engine, "a") == list(range(100, 110))
    assert sum(kind is FrameKind.TXN_APPEND for shard in range(3) for kind in logged(engine, shard)) == 4
    assert (topic(engine, "a").staged_count, topic(engine, "a").staged_bytes) == (0, 0)


def test_a_topic_that_goes_between_two_rounds_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "_ROUND_BYTES", 4)
    disk = FakeDisk()
    engine = open_engine(disk, wal_shards=3)
    put(engine, "a", durability=FSYNC)
    put(engine, "b", durability=FSYNC)
    append(engine, "b", "before")
    begin(engine)
    stage(engine, "b", 100)
    stage(engine, "a", 101)
    hold(engine)
    answers = ask_commit(engine)
    dropped = ask_drop(engine, "a")
    behind = ask_append(engine, "b", "behind")
    for _ in range(4):
        for shard in engine.core.shards:
            shard.committer.flush()  # type: ignore[attr-defined]
    flush(engine)
    (error,) = answers
    assert isinstance(error, TopicNotFoundError)
    assert (len(dropped), len(behind)) == (1, 1)
    # The prepared records for b are skipped: their seq belongs to no record, and nothing is reported as lost.
    for each in (engine, open_engine(killed(disk), wal_shards=3)):
        assert (values(each, "b"), seqs(each, "b")) == (["before", "behind"], [1, 3])
        assert topic(each, "b").lost is None
        assert each.core.staged_bytes == topic(each, "b").staged_count == 0


# Limits and time


def test_limits_hold_before_anything_is_staged() -> None:
    limits = Limits(
        max_transactions=2, max_transaction_ids=3, max_transaction_parts=2, max_transaction_records=3,
        max_transaction_bytes=20, max_staged_bytes=25,
    )  # fmt: skip
    engine = open_engine(limits=limits)
    begin(engine)
    stage(engine, "a", 1, part="p1")
    stage(engine, "a", 1, part="p2")
    with pytest.raises(TransactionTooLargeError) as parts:
        stage(engine, "a", 1, part="p3")
    with pytest.raises(TransactionTooLargeError) as records:
        stage(engine, "a", 1, 2, 3, part="p2")
    with pytest.raises(TransactionTooLargeError) as size:
        stage(engine, "a", "x" * 30, part="p2")
    assert [error.value.detail["what"] for error in (parts, records, size)] == ["parts", "records", "bytes"]
    begin(engine, "u")
    stage(engine, "a", "x" * 15, ref=ref("u"), part="p")
    stage(engine, "a", "x" * 4, part="p2")
    with pytest.raises(ThrottledError):
        stage(engine, "a", "x" * 9, part="p2")
    with pytest.raises(ThrottledError):
        begin(engine, "v")
    begin(engine, "v", owner="other")
    with pytest.raises(ThrottledError):
        begin(engine, "w", owner="other")
    abort(engine)
    begin(engine, "w", owner="other")


def test_an_abandoned_one_expires_and_its_staging_keeps_it() -> None:
    clock = ManualClock()
    engine = open_engine(clock=clock)
    begin(engine, timeout_ms=1000)
    begin(engine, "u")
    clock.advance(600)
    stage(engine, "a", 1)
    clock.advance(600)
    engine.housekeeper.tick()
    assert commit(engine).records == 1
    assert list(engine.transactions.table.open) == ["u"]
    clock.advance(Limits().transaction_timeout_ms)
    engine.housekeeper.tick()
    assert not engine.transactions.table.open
    assert engine.stats().transactions_aborted_total == 1


def test_what_was_committed_is_remembered_for_its_time() -> None:
    clock, disk = ManualClock(), FakeDisk()
    engine = open_engine(disk, clock)
    begin(engine)
    commit(engine)
    clock.advance(Limits().transaction_retention_ms)
    engine.housekeeper.tick()
    assert begin(engine).state == "committed"
    clock.advance(1)
    engine.housekeeper.tick()
    assert checkpoint(engine)
    engine = open_engine(killed(disk), clock)
    assert begin(engine).state == "open"


# Restarts


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_is_staged_survives_a_kill_and_what_is_committed_anything(checkpointed: bool) -> None:
    disk = FakeDisk()
    engine = open_engine(disk, wal_shards=3, segment_max_events=4)
    put(engine, "e", durability=EPHEMERAL)
    begin(engine)
    attempt = begin(engine).attempt
    stage(engine, "a", *range(6), part="one")
    stage(engine, "e", 1, part="two")
    if checkpointed:
        assert checkpoint(engine)
    engine = open_engine(killed(disk), wal_shards=3, segment_max_events=4)
    assert engine.transactions.find("t", "", anywhere).records == 7
    disk = engine._fs  # type: ignore[assignment]
    commit(engine, ref(attempt=attempt))
    engine = open_engine(after_power_cut(disk), boot_id="b", wal_shards=3, segment_max_events=4)
    assert values(engine, "a") == [0, 1, 2, 3, 4, 5]
    assert commit(engine).deduped
    assert topic(engine, TOPIC_NAME).live_count == 0


def test_shards_may_become_more_or_fewer() -> None:
    disk = FakeDisk()
    engine = open_engine(disk, wal_shards=3)
    begin(engine)
    stage(engine, "a", 1)
    stage(engine, "b", 2)
    commit(engine)
    begin(engine, sequence=2)
    stage(engine, "a", 3, ref=ref(sequence=2))
    engine = open_engine(killed(disk), wal_shards=1)
    assert commit(engine).deduped
    commit(engine, ref(sequence=2))
    assert (values(engine, "a"), values(engine, "b")) == ([1, 3], [2])


def test_a_commit_waits_for_a_checkpoint_that_is_turning() -> None:
    engine = open_engine(wal_shards=2)
    put(engine, "a")
    begin(engine)
    stage(engine, "a", 1)
    gate = engine.core.cross_shard_gate
    gate.close(lambda: None)
    answers = ask_commit(engine)
    assert answers == []
    gate.reopen()
    assert len(answers) == 1


def test_a_commit_that_cannot_be_logged_leaves_the_transaction_open() -> None:
    disk = FakeDisk()
    fs = FaultyFileSystem(disk)
    engine = open_engine(fs, wal_shards=1)
    put(engine, "a")
    begin(engine)
    stage(engine, "a", 1)
    fs.plan = FaultPlan(call=fs.calls + 1, lasting=True, within="data/wal")
    (error,) = ask_commit(engine)
    assert isinstance(error, ReadOnlyError)
    assert (topic(engine, "a").staged_head, engine.core.staged_bytes) == (0, 0)
    engine = open_engine(killed(disk))
    assert commit(engine).records == 1
    assert FrameKind.TXN_COMMIT in logged(engine)


def test_a_commit_that_meets_a_full_disk_was_not_made_and_can_be_made_later() -> None:
    disk = FakeDisk()
    fs = FaultyFileSystem(disk)
    engine = open_engine(fs, wal_shards=3)
    for name in ("a", "b", "elsewhere"):
        put(engine, name, durability=FSYNC)
    begin(engine)
    stage(engine, "a", 1)
    stage(engine, "b", 2)
    books = topic(engine, TOPIC_NAME)
    assert books.shard not in (topic(engine, "a").shard, topic(engine, "b").shard)
    folder = engine.core.layout.shard(books.shard)
    hold(engine)
    answers = ask_commit(engine)
    for shard in engine.core.shards:
        if shard.number != books.shard:
            shard.committer.flush()  # type: ignore[attr-defined]
    # Everything is prepared; the next call writes the commit.
    fs.plan = FaultPlan(call=fs.calls + 1, fault=Fault.ENOSPC, within=folder)
    flush(engine)
    (error,) = answers
    assert isinstance(error, TopicsError)
    # The prepared records are skipped, and their topics go on.
    fs.plan = FaultPlan()
    assert append(engine, "a", "behind").first_seq == 2
    engine.housekeeper.tick()
    assert commit(engine).records == 2
    for each in (engine, open_engine(killed(disk), wal_shards=3)):
        assert (values(each, "a"), seqs(each, "a")) == (["behind", 1], [2, 3])
        assert values(each, "b") == [2]
