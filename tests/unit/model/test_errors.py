"""The drawn tree is the real one, every code is distinct, and no message can be used to hurt a log or an answer."""

import inspect
import re

import msgspec
import pytest

from topics.model import errors
from topics.model.errors import (
    AppendTimeoutError,
    BackupFailedError,
    BackupRunningError,
    BackupTargetError,
    BatchTooLargeError,
    ColdStoreUnavailableError,
    ConsumerNotFoundError,
    CorruptSegmentError,
    DamagedBackupError,
    DamageError,
    DiskFullError,
    FenceMismatchError,
    Finding,
    FolderBusyError,
    HeadMismatchError,
    IdempotencyConflictError,
    InvalidRequestError,
    JobNotFoundError,
    LeaseEndedError,
    NewerFormatError,
    NoBackupPlaceError,
    NotAQueueError,
    NotPrimaryError,
    NotReadyError,
    OffsetGoneError,
    OperatorError,
    ProducerFencedError,
    ProducerGapError,
    ReadOnlyError,
    RecordTooLargeError,
    RemoteUnavailableError,
    RetryLaterError,
    RouterCycleError,
    RouterNotFoundError,
    ScheduleNotFoundError,
    SearchUnavailableError,
    SequenceConflictError,
    ShuttingDownError,
    StreamClosedError,
    StreamConflictError,
    StreamGoneError,
    SystemBusyError,
    SystemStreamError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicFullError,
    TopicNotEmptyError,
    TopicNotFoundError,
    TopicRecreatedError,
    TopicsError,
    TopicStateError,
    TransactionBusyError,
    TransactionFencedError,
    TransactionForeignError,
    TransactionIncompleteError,
    TransactionNotFoundError,
    TransactionSequenceError,
    TransactionStateError,
    TransactionTooLargeError,
    quoted,
)

GROUPS = {TopicStateError, TransactionStateError, RetryLaterError, OperatorError}
FINDING = Finding("wal/00/0000000000000001.log", "the checksum of a frame does not match", byte_range=(128, 512))

ROWS: list[tuple[TopicsError, str, type[TopicsError], dict[str, object]]] = [
    (InvalidRequestError("no", field="x"), "invalid_request", TopicsError, {"field": "x"}),
    (BatchTooLargeError("no", max=3), "batch_too_large", InvalidRequestError, {"max": 3}),
    (RecordTooLargeError("no", index=0), "record_too_large", InvalidRequestError, {"index": 0}),
    (TopicNotFoundError("jobs"), "topic_not_found", TopicStateError, {"topic": "jobs"}),
    (TopicExistsIncompatibleError("no", topic="t"), "topic_exists_incompatible", TopicStateError, {"topic": "t"}),
    (NotAQueueError("jobs"), "not_a_queue", TopicStateError, {"topic": "jobs"}),
    (TopicNotEmptyError("jobs", 4), "topic_not_empty", TopicStateError, {"topic": "jobs", "count": 4}),
    (
        TopicFullError("jobs", cap_records=2, cap_bytes=0, head_seq=9, earliest_seq=8),
        "topic_full",
        TopicStateError,
        {"topic": "jobs", "cap_records": 2, "cap_bytes": 0, "head_seq": 9, "earliest_seq": 8},
    ),
    (RouterNotFoundError("a->b"), "router_not_found", TopicStateError, {"router": "a->b"}),
    (
        ConsumerNotFoundError("t", "c"),
        "consumer_not_found",
        TopicStateError,
        {"topic": "t", "consumer": "c"},
    ),
    (ScheduleNotFoundError("s"), "schedule_not_found", TopicStateError, {"schedule": "s"}),
    (JobNotFoundError("t", 5), "job_not_found", TopicStateError, {"topic": "t", "seq": 5}),
    (TopicRecreatedError("t", 1, 2), "topic_recreated", TopicStateError, {"topic": "t", "epoch": 2}),
    (
        HeadMismatchError("t", 1, 2),
        "head_mismatch",
        TopicStateError,
        {"topic": "t", "expected_head_seq": 1, "head_seq": 2},
    ),
    (FenceMismatchError("t", "a", "b"), "fence_mismatch", TopicStateError, {"topic": "t", "fence": "b"}),
    (RouterCycleError(["a", "b", "a"]), "router_cycle", TopicStateError, {"cycle": ["a", "b", "a"]}),
    (StreamClosedError("s"), "stream_closed", TopicStateError, {"stream": "s"}),
    (StreamGoneError("s"), "stream_gone", TopicStateError, {"stream": "s"}),
    (StreamConflictError("no", stream="s"), "stream_conflict", TopicStateError, {"stream": "s"}),
    (
        IdempotencyConflictError("t", 3, 4),
        "idempotency_conflict",
        TopicStateError,
        {"topic": "t", "first_seq": 3, "last_seq": 4},
    ),
    (SequenceConflictError("1", "2"), "sequence_conflict", TopicStateError, {"given": "1", "last": "2"}),
    (
        ProducerGapError("p", 1, 3),
        "producer_gap",
        TopicStateError,
        {"producer": "p", "expected_seq": 1, "received_seq": 3},
    ),
    (SystemStreamError("__registry__"), "system_stream", TopicStateError, {"stream": "__registry__"}),
    (ProducerFencedError("p", 4), "producer_fenced", TopicStateError, {"producer": "p", "epoch": 4}),
    (OffsetGoneError("no", stream="s"), "offset_gone", TopicStateError, {"stream": "s"}),
    (
        TransactionTooLargeError("bytes", 9),
        "transaction_too_large",
        InvalidRequestError,
        {"what": "bytes", "max": 9},
    ),
    (TransactionNotFoundError("t"), "transaction_not_found", TransactionStateError, {"transaction": "t"}),
    (TransactionForeignError("t"), "transaction_foreign", TransactionStateError, {"transaction": "t"}),
    (
        TransactionFencedError("t", 4),
        "transaction_fenced",
        TransactionStateError,
        {"transaction": "t", "sequence": 4},
    ),
    (
        TransactionSequenceError("t", 3, 4),
        "transaction_sequence",
        TransactionStateError,
        {"transaction": "t", "sequence": 3, "committed": 4},
    ),
    (
        TransactionIncompleteError("t", ["p", "q"]),
        "transaction_incomplete",
        TransactionStateError,
        {"transaction": "t", "missing": 2, "first_missing": "p"},
    ),
    (TransactionBusyError("t"), "transaction_busy", RetryLaterError, {"transaction": "t"}),
    (AppendTimeoutError(), "append_timeout", RetryLaterError, {}),
    (ThrottledError.over_cap("max_topics", 5), "throttled", RetryLaterError, {"limit": "max_topics", "max": 5}),
    (ThrottledError.under_pressure(250), "throttled", RetryLaterError, {"retry_after_ms": 250}),
    (ColdStoreUnavailableError("refused"), "cold_store_unavailable", RetryLaterError, {}),
    (RemoteUnavailableError("refused", True), "remote_unavailable", RetryLaterError, {"in_doubt": True}),
    (LeaseEndedError(), "lease_ended", RetryLaterError, {"retry_after_ms": 1000}),
    (NotPrimaryError("http://other:4000"), "not_primary", RetryLaterError, {"primary": "http://other:4000"}),
    (NotPrimaryError(""), "not_primary", RetryLaterError, {"primary": None}),
    (BackupRunningError(), "backup_running", RetryLaterError, {}),
    (BackupFailedError("no room"), "backup_failed", RetryLaterError, {}),
    (BackupTargetError("no such backup"), "backup_target", TopicsError, {}),
    (NoBackupPlaceError(), "no_backup_place", OperatorError, {}),
    (
        DamagedBackupError([("log/1.wal", "a wrong checksum")]),
        "damaged_backup",
        OperatorError,
        {"files": [{"name": "log/1.wal", "why": "a wrong checksum"}]},
    ),
    (DiskFullError(), "disk_full", RetryLaterError, {"retry_after_ms": 1000}),
    (SystemBusyError("no file descriptors"), "system_busy", RetryLaterError, {"retry_after_ms": 1000}),
    (SearchUnavailableError("gone"), "search_unavailable", RetryLaterError, {}),
    (NotReadyError(0.5), "not_ready", RetryLaterError, {"replay_progress": 0.5}),
    (ShuttingDownError(), "shutting_down", RetryLaterError, {}),
    (ReadOnlyError(3, "no space left"), "read_only", OperatorError, {"shard": 3, "cause": "no space left"}),
    (
        CorruptSegmentError("jobs", 10, 19),
        "corrupt_segment",
        OperatorError,
        {"topic": "jobs", "from_seq": 10, "to_seq": 19},
    ),
    (DamageError([FINDING]), "damage", OperatorError, {"findings": [msgspec.structs.asdict(FINDING)]}),
    (
        NewerFormatError("a frame of kind 99", "wal/1.wal"),
        "newer_format",
        OperatorError,
        {"where": "wal/1.wal", "what": "a frame of kind 99"},
    ),
    (FolderBusyError("data", "pid 7"), "folder_busy", OperatorError, {"folder": "data", "owner": "pid 7"}),
]


MODULES = (errors, errors, errors)


def all_errors() -> set[type[TopicsError]]:
    members = [member for module in MODULES for _, member in inspect.getmembers(module, inspect.isclass)]
    return {member for member in members if issubclass(member, TopicsError)}


@pytest.mark.parametrize(("error", "code", "parent", "detail"), ROWS, ids=lambda value: type(value).__name__)
def test_each_error_has_its_code_branch_and_detail(
    error: TopicsError, code: str, parent: type[TopicsError], detail: dict[str, object]
) -> None:
    assert error.code == code
    assert type(error).__mro__[1] is parent
    assert error.detail == detail
    assert error.message
    assert str(error) == error.message
    msgspec.json.encode(error.detail)


def test_every_error_that_can_be_raised_has_a_row() -> None:
    assert {type(row[0]) for row in ROWS} == all_errors() - GROUPS - {TopicsError}


def test_codes_are_distinct() -> None:
    codes = [member.code for member in all_errors() - GROUPS]
    assert len(codes) == len(set(codes))


def test_the_drawn_tree_is_the_real_one() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+Error)(?: +([a-z_]+)(?:  |$))?", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        above[depth:] = [found[2]]
        drawn[found[2]] = (above[depth - 1] if depth else None, found[3])
    real = {
        member.__name__: (
            None if member is TopicsError else member.__mro__[1].__name__,
            None if member in GROUPS else member.code,
        )
        for member in all_errors()
    }
    assert drawn == real


def test_read_only_states_what_the_operator_can_do() -> None:
    assert "restart the server" in ReadOnlyError(0, "input/output error").message


def test_damage_keeps_every_finding() -> None:
    second = Finding("segments/1", "the file ends early", seq_range=(5, 9), topic="jobs")
    error = DamageError([FINDING, second])
    assert error.findings == (FINDING, second)
    assert "2 place(s)" in error.message
    assert FINDING.where in error.message


def test_damage_without_a_finding_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="without a finding"):
        DamageError([])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jobs", '"jobs"'),
        ("a\nERROR forged", '"a\\nERROR forged"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("\ud800", '"\\ud800"'),
        ("x" * 5000, '"' + "x" * 80 + '..."'),
    ],
)
def test_quoted_text_is_harmless(text: str, shown: str) -> None:
    assert quoted(text) == shown
    msgspec.json.encode(quoted(text))


class Body(msgspec.Struct):
    count: int
    names: list[str] = []


@pytest.mark.parametrize(
    ("raw", "message", "field"),
    [
        (b'{"count":"x"}', "body field count: Expected int, got str", "count"),
        (b'{"count":1,"names":["a",2]}', "body field names[1]: Expected str, got int", "names[1]"),
        (b"{}", "body: Object missing required field count", None),
        (b"[]", "body: Expected object, got array", None),
        (b'{"count":', "body: Input data was truncated", None),
        (
            b'{"count":1,"names":["\\ud800"]}',
            "body: a string has an unpaired surrogate, such as \\ud800, which is not a character",
            None,
        ),
        (
            b'{"names":["\\ud800"],"count":1,"more":"and more"}',
            "body: a string has an unpaired surrogate, such as \\ud800, which is not a character",
            None,
        ),
        (
            b'{"count":1,"names":["\\udc00 low"]}',
            "body: a string has an unpaired surrogate, such as \\ud800, which is not a character",
            None,
        ),
        (b'{"count":1,"names":["\\ud800\\u00', "body: Input data was truncated", None),
        (b'{"count":1,"names":["\xff"]}', "body: the text is not valid UTF-8", None),
        (b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "body: the JSON is nested too deeply", None),
    ],
    ids=["type", "list", "missing", "array", "cut", "half", "early half", "other half", "cut pair", "utf-8", "deep"],
)
def test_a_decode_failure_becomes_a_refusal_that_names_the_field(raw: bytes, message: str, field: str | None) -> None:
    with pytest.raises((ValueError, RecursionError)) as caught:
        msgspec.json.decode(raw, type=Body)
    refusal = InvalidRequestError.from_decode("body", caught.value, raw)
    assert refusal.message == message
    assert refusal.detail == ({} if field is None else {"field": field})
