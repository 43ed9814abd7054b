"""The laws of one read, and of a reader that goes on until it has caught up, held against the model."""

from collections.abc import Callable
from random import Random

from topics.engine.read import ReadRequest, ReadResult
from topics.model.seq_ranges import LossReason, Tombstone
from topics.testing import Fate, ModelRecord, ModelTopic

Read = Callable[[ReadRequest], ReadResult]


def check_read(topic: ModelTopic, request: ReadRequest, result: ReadResult) -> int:
    """Holds an answer against the model; returns the cursor that a tombstone, if there was one, moved the reader to."""
    cursor, upto = request.from_seq, result.next_from_seq
    assert (result.head_seq, result.earliest_seq) == (topic.head, topic.earliest)
    assert result.caught_up == (upto == topic.head)
    assert result.lag == topic.head - upto
    _check_tombstone(topic, request, result)
    resumed = cursor
    if result.tombstone is not None:
        recreated = result.tombstone.reason is LossReason.RECREATED
        resumed = topic.earliest - 1 if recreated else result.tombstone.gap_to
    assert resumed <= upto <= topic.head
    assert upto > cursor or result.caught_up or cursor > topic.head, "the reader does not get on"
    untold = [gap for gap in topic.lost if gap[0] <= upto and gap[1] > resumed]
    assert not untold, f"the cursor went from {resumed} to {upto} across lost ranges {untold} without a word"
    _check_records(topic, request, result, resumed)
    return resumed


def _check_tombstone(topic: ModelTopic, request: ReadRequest, result: ReadResult) -> None:
    cursor, stone = request.from_seq, result.tombstone
    expected = topic.tombstone(cursor)
    if expected is None:
        assert stone is None, f"a tombstone that nothing explains: {stone}"
        return
    if stone is None:
        # Only deleted records stand between the cursor and a lost range, and the reader was taken past them first.
        begin = next(first for first, last in topic.lost if last > cursor)
        assert expected[2] is LossReason.CRASH
        assert not result.count
        assert cursor < result.next_from_seq < begin
        return
    gap_from, gap_to, reason = expected
    estimate = stone.missed_estimate
    resume = topic.earliest if reason is LossReason.RECREATED else gap_to + 1
    assert stone == Tombstone(gap_from, gap_to, reason, estimate, resume, topic.head)
    assert 0 <= estimate <= gap_to - gap_from + 1


def _check_records(topic: ModelTopic, request: ReadRequest, result: ReadResult, resumed: int) -> None:
    upto = result.next_from_seq
    filtered = set(request.nodes) if topic.config.dedupe_node else set()
    looked_at = [record for record in topic.live if resumed < record.seq <= upto]
    requested = [record for record in looked_at if record.node is None or record.node not in filtered]
    assert result.body == b",".join(record.json(request.include_tags, request.include_meta) for record in requested)
    assert result.count == len(requested) == len(result.records())
    assert result.count <= result.scanned
    assert len(looked_at) <= request.limit
    assert len(requested) <= 1 or _size(requested) <= request.max_bytes
    if upto < topic.head and upto + 1 not in {first for first, _ in topic.lost} and len(looked_at) < request.limit:
        # It stopped although there was more and more was requested: the next record must be the one that did not fit.
        following = next(record for record in topic.live if record.seq > upto)
        assert following.node is None or following.node not in filtered
        assert requested
        assert _size([*requested, following]) > request.max_bytes


def _size(records: list[ModelRecord]) -> int:
    return len(b",".join(record.json() for record in records))


def check_scan(topic: ModelTopic, read: Read, cursor: int, rng: Random) -> None:
    """Reads from a cursor until it has caught up. Every live record comes once, in order; every loss is reported."""
    # A cursor from another life of the topic is reported, and then gets everything.
    begin, seen, reported = cursor if cursor <= topic.head else 0, [], []
    for _ in range(topic.head + len(topic.lost) + 2):
        request = ReadRequest(
            from_seq=cursor, limit=rng.choice([1, 3, 10, 1000]), include_tags=True,
            max_bytes=rng.choice([1, 300, 100_000]),
        )  # fmt: skip
        result = read(request)
        check_read(topic, request, result)
        seen += [record["$seq"] for record in result.records()]
        if result.tombstone is not None:
            reported.append((result.tombstone.gap_from, result.tombstone.gap_to))
        cursor = result.next_from_seq
        if result.caught_up:
            break
    else:
        raise AssertionError("a reader went on without ever catching up")
    assert seen == [record.seq for record in topic.live if record.seq > begin]
    lost = [record.seq for record in topic.records if record.fate in (Fate.EVICTED, Fate.LOST) and record.seq > begin]
    silent = [seq for seq in lost if not any(first <= seq <= last for first, last in reported)]
    assert not silent, f"records {silent} were lost and the reader was never told"
