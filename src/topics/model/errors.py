"""Errors: every way an operation can be refused, as one tree. A branch is what the caller does next.

    TopicsError                           internal                   report it: this is our mistake
    ├── InvalidRequestError               invalid_request            change the request; sending it again is in vain
    │   ├── BatchTooLargeError            batch_too_large            split the batch
    │   ├── RecordTooLargeError           record_too_large           make the record, or the batch, smaller
    │   └── TransactionTooLargeError      transaction_too_large      commit what there is, and begin another
    ├── TopicStateError                                              look at the topic, then decide
    │   ├── TopicNotFoundError            topic_not_found            create it, or correct the name
    │   ├── TopicExistsIncompatibleError  topic_exists_incompatible  keep what exists, or delete it first
    │   ├── TopicNotEmptyError            topic_not_empty            empty it, or delete without the condition
    │   ├── NotAQueueError                not_a_queue                correct the name: only queues have jobs
    │   ├── TopicFullError                topic_full                 send again once consumers made room
    │   ├── RouterNotFoundError           router_not_found           create it, or correct the name
    │   ├── ConsumerNotFoundError         consumer_not_found         create it, or correct the name
    │   ├── ScheduleNotFoundError         schedule_not_found         create it, or correct the name
    │   ├── JobNotFoundError              job_not_found              list the jobs
    │   ├── TopicRecreatedError           topic_recreated            begin anew: another topic has the name now
    │   ├── HeadMismatchError             head_mismatch              read what is new, then decide again
    │   ├── FenceMismatchError            fence_mismatch             stop: another writer has taken over
    │   ├── RouterCycleError              router_cycle               break the cycle, or allow it
    │   ├── StreamClosedError             stream_closed              read it to its end; nothing more is taken
    │   ├── StreamGoneError               stream_gone                use another name: only its forks are left
    │   ├── StreamConflictError           stream_conflict            use the stream as it was created
    │   ├── SystemStreamError             system_stream              only read it: the server alone writes it
    │   ├── IdempotencyConflictError      idempotency_conflict       use another key: this one stands for other records
    │   ├── SequenceConflictError         sequence_conflict          another writer was faster: look, then decide
    │   ├── ProducerGapError              producer_gap               send what is missing first
    │   ├── ProducerFencedError           producer_fenced            stop, or begin a higher epoch
    │   └── OffsetGoneError               offset_gone                read from the start; records were lost in between
    ├── TransactionStateError                                        look at the transaction, then decide
    │   ├── TransactionNotFoundError      transaction_not_found      begin it again: it expired, or never was
    │   ├── TransactionForeignError       transaction_foreign        use the key that began it
    │   ├── TransactionFencedError        transaction_fenced         stop: another attempt has taken over
    │   ├── TransactionSequenceError      transaction_sequence       stop: a later sequence was committed
    │   └── TransactionIncompleteError    transaction_incomplete     stage what is missing, and commit again
    ├── RetryLaterError                                              send the same request again, later
    │   ├── ThrottledError                throttled
    │   ├── AppendTimeoutError            append_timeout             look whether it is there before sending it again
    │   ├── ColdStoreUnavailableError     cold_store_unavailable     nothing is lost: newer records still answer
    │   ├── RemoteUnavailableError        remote_unavailable         send it again with the same idempotency key
    │   ├── NotPrimaryError               not_primary                send it to the primary, `detail.primary`
    │   ├── LeaseEndedError               lease_ended                wait until it is renewed, or find the primary
    │   ├── DiskFullError                 disk_full                  delete something, or wait until there is room
    │   ├── SystemBusyError               system_busy
    │   ├── SearchUnavailableError        search_unavailable         everything but searching works
    │   ├── TransactionBusyError          transaction_busy           its commit is on its way
    │   ├── BackupRunningError            backup_running             wait until it is done
    │   ├── BackupFailedError             backup_failed              look why; earlier backups are as they were
    │   ├── NotReadyError                 not_ready
    │   └── ShuttingDownError             shutting_down
    ├── BackupTargetError                 backup_target              ask for a state that the backups have
    └── OperatorError                                                a person looks at the machine
        ├── NoBackupPlaceError            no_backup_place            name one with TOPICS_BACKUP_DIR
        ├── DamagedBackupError            damaged_backup             use another backup; the findings name the files
        ├── ReadOnlyError                 read_only                  mend the disk, restart; reads still work
        ├── CorruptSegmentError           corrupt_segment            read around the range, or repair
        ├── DamageError                   damage                     verify and repair before starting
        ├── NewerFormatError              newer_format               start the release that wrote the folder
        └── FolderBusyError               folder_busy                stop the other process

`code` is the stable word clients branch on, `message` is for people and may change, `detail` is structured context.
The HTTP status of each code is not decided here: this tree serves embedders and the command line just as well.
"""

import json
import re
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import msgspec

# Why a body could not be decoded, in words for a caller that sent it.

_PROBLEM_CHARS_MAX = 200
_MSGSPEC_PATH = re.compile(r"(?P<problem>.*) - at `(?:key in )?\$\.?(?P<path>.*)`", re.DOTALL)
_TRUNCATED = "Input data was truncated"
_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}[^\\]")


class Problem(NamedTuple):
    text: str
    field: str = ""
    """The field, where the decoder names it."""


def problem_of(error: Exception, body: bytes | str) -> Problem:
    """Maps an error of msgspec to a problem. Malformed JSON, a wrong type and bad UTF-8 are all `ValueError`s, and a
    hostile depth of nesting is a `RecursionError`."""
    if isinstance(error, RecursionError):
        return Problem("the JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return Problem("the text is not valid UTF-8")
    text = str(error)
    if "surrogate" in text or (text == _TRUNCATED and _ends_in_half_a_pair(body)):
        return Problem("a string has an unpaired surrogate, such as \\ud800, which is not a character")
    found = _MSGSPEC_PATH.fullmatch(text)
    problem = (found["problem"] if found else text).replace("`", "")[:_PROBLEM_CHARS_MAX]
    return Problem(problem, found["path"] if found else "")


def _ends_in_half_a_pair(body: bytes | str) -> bool:
    """Whether that is why the parser found no end: it looks for the other half behind the last byte."""
    tail = body[-16:]
    return _HALF_A_PAIR.search(tail.encode("utf-8", "replace") if isinstance(tail, str) else bytes(tail)) is not None


# Damage that was found in a data folder.

UNFINISHED_RESTORE = "a restore was begun and not finished; remove the folder and restore again"


class Finding(msgspec.Struct, frozen=True):
    """One damaged place, exact enough to look at with a hex editor."""

    where: str
    """The file, relative to the data folder."""
    what: str
    """One sentence: what is wrong there."""
    byte_range: tuple[int, int] | None = None
    """The damaged bytes of the file: the first, and the one behind the last."""
    seq_range: tuple[int, int] | None = None
    """The records concerned, first and last, when they are known."""
    topic: str | None = None


_QUOTED_CHARS_MAX = 80


def quoted(text: str) -> str:
    """`text` in double quotes, cut to a readable length and pure ASCII.

    Messages end up in logs and answers, so a caller's text must be able neither to forge a log line, nor to grow a
    message to the size of a request, nor to carry a lone surrogate that the JSON encoder would choke on.
    """
    shown = text if len(text) <= _QUOTED_CHARS_MAX else text[:_QUOTED_CHARS_MAX] + "..."
    return json.dumps(shown)


class TopicsError(Exception):
    """The root. Raised as itself only for a broken promise inside the engine."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, /, **detail: object) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, object] = detail


class InvalidRequestError(TopicsError):
    """The request itself is wrong, whatever state the server is in."""

    code = "invalid_request"

    @classmethod
    def from_decode(cls, what: str, error: Exception, body: bytes | str = b"") -> Self:
        """The refusal of a body that msgspec could not decode, naming the field when msgspec states which one it was.

        Callers catch `(ValueError, RecursionError)`; see `model.errors`.
        """
        problem, field = problem_of(error, body)
        return cls(f"{what} field {field}: {problem}", field=field) if field else cls(f"{what}: {problem}")


class BatchTooLargeError(InvalidRequestError):
    """More records, or more seqs, than one request may carry."""

    code = "batch_too_large"


class RecordTooLargeError(InvalidRequestError):
    """One record is over its byte limit, or a batch could not fit into the topic's cap even if the topic were empty.

    The second case is here and not in `TopicFullError` because no amount of draining would ever make it succeed.
    """

    code = "record_too_large"


class TopicStateError(TopicsError):
    """The request is sound, the topic is not in a state to take it."""


class TopicNotFoundError(TopicStateError):
    """There is no such topic, and this request was not allowed to create it."""

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {quoted(topic)} does not exist", topic=topic)


class TopicExistsIncompatibleError(TopicStateError):
    """The change asked for cannot be made to what exists, such as turning a log into a queue."""

    code = "topic_exists_incompatible"


class TopicNotEmptyError(TopicStateError):
    """A deletion on the condition that the topic is empty found records."""

    code = "topic_not_empty"

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(f"topic {quoted(topic)} still holds {count} records", topic=topic, count=count)


class NotAQueueError(TopicStateError):
    """The request is about jobs and the topic is a plain log: a mistyped name must not swallow work."""

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {quoted(topic)} is not a queue", topic=topic)


class TopicFullError(TopicStateError):
    """A topic that rejects rather than drops is at its cap; nothing of the batch was appended."""

    code = "topic_full"

    def __init__(self, topic: str, *, cap_records: int, cap_bytes: int, head_seq: int, earliest_seq: int) -> None:
        super().__init__(
            f"topic {quoted(topic)} is full",
            topic=topic,
            cap_records=cap_records,
            cap_bytes=cap_bytes,
            head_seq=head_seq,
            earliest_seq=earliest_seq,
        )


class RouterNotFoundError(TopicStateError):
    """There is no such router."""

    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f"router {quoted(router)} does not exist", router=router)


class ConsumerNotFoundError(TopicStateError):
    """The topic has no consumer of that name."""

    code = "consumer_not_found"

    def __init__(self, topic: str, consumer: str) -> None:
        super().__init__(
            f"topic {quoted(topic)} has no consumer {quoted(consumer)}. Create it with PUT",
            topic=topic, consumer=consumer,
        )  # fmt: skip


class ScheduleNotFoundError(TopicStateError):
    """There is no such schedule."""

    code = "schedule_not_found"

    def __init__(self, schedule: str) -> None:
        super().__init__(f"schedule {quoted(schedule)} does not exist. Create it with PUT", schedule=schedule)


class JobNotFoundError(TopicStateError):
    """The queue has no such job."""

    code = "job_not_found"

    def __init__(self, topic: str, seq: int) -> None:
        super().__init__(
            f"queue {quoted(topic)} has no job {seq}: it is done, or never was. List its jobs", topic=topic, seq=seq
        )


class TopicRecreatedError(TopicStateError):
    """The request names the epoch of an earlier topic of this name."""

    code = "topic_recreated"

    def __init__(self, topic: str, expected: int, epoch: int) -> None:
        super().__init__(
            f"topic {quoted(topic)} was deleted and created again: its epoch is {epoch}, not {expected}. "
            "Read it from the start",
            topic=topic, epoch=epoch,
        )  # fmt: skip


class HeadMismatchError(TopicStateError):
    """An append expected another head: another writer was faster."""

    code = "head_mismatch"

    def __init__(self, topic: str, expected: int, head: int) -> None:
        super().__init__(
            f"the head of topic {quoted(topic)} is {head}, not {expected}. Read the new records, then decide again",
            topic=topic, expected_head_seq=expected, head_seq=head,
        )  # fmt: skip


class FenceMismatchError(TopicStateError):
    """An append names another fence token than the topic has: another writer has taken over."""

    code = "fence_mismatch"

    def __init__(self, topic: str, held: str, fence: str) -> None:
        super().__init__(
            f"the fence of topic {quoted(topic)} is {quoted(fence)}, not {quoted(held)}. Stop writing: another writer "
            "has taken over",
            topic=topic, fence=fence,
        )  # fmt: skip


class RouterCycleError(TopicStateError):
    """The router would close a cycle, in which records would go round. `cycle` begins and ends with its source."""

    code = "router_cycle"

    def __init__(self, cycle: Sequence[str]) -> None:
        names = " -> ".join(map(quoted, cycle))
        super().__init__(f"the router would close a cycle: {names}. Set allow_cycle to allow it", cycle=list(cycle))


class StreamClosedError(TopicStateError):
    """A stream that was closed takes nothing more, through either protocol."""

    code = "stream_closed"

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {quoted(stream)} is closed", stream=stream)


class StreamGoneError(TopicStateError):
    """A stream was deleted while forks still read from it, so its name is not free yet."""

    code = "stream_gone"

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {quoted(stream)} was deleted, and forks use its entries. Use another name, or delete the forks",
            stream=stream,
        )


class StreamConflictError(TopicStateError):
    """A stream exists with other settings than the request assumes."""

    code = "stream_conflict"


class IdempotencyConflictError(TopicStateError):
    """An idempotency key that was used for other records, and a writer who asked to be told."""

    code = "idempotency_conflict"

    def __init__(self, topic: str, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f"the idempotency key was used for other records of topic {quoted(topic)}, seqs {first_seq} to {last_seq}",
            topic=topic, first_seq=first_seq, last_seq=last_seq,
        )  # fmt: skip


class SequenceConflictError(TopicStateError):
    """A `Stream-Seq` that is not above the last one of the stream."""

    code = "sequence_conflict"

    def __init__(self, given: str, last: str) -> None:
        super().__init__(
            f"Stream-Seq {quoted(given)} is not above the stream's last one, {quoted(last)}", given=given, last=last
        )
        self.given = given
        self.last = last


class ProducerGapError(TopicStateError):
    """A producer's batch came before the one that should precede it."""

    code = "producer_gap"

    def __init__(self, producer: str, expected: int, received: int) -> None:
        super().__init__(
            f"producer {quoted(producer)} sent batch {received} where {expected} is next",
            producer=producer,
            expected_seq=expected,
            received_seq=received,
        )
        self.expected = expected
        self.received = received


class SystemStreamError(TopicStateError):
    """Somebody wants to write, change or delete a stream that the server keeps for others to read."""

    code = "system_stream"

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {quoted(stream)} is written by the server only. Read it, or append to another stream",
            stream=stream,
        )


class ProducerFencedError(TopicStateError):
    """A later run of the same producer has taken over."""

    code = "producer_fenced"

    def __init__(self, producer: str, epoch: int) -> None:
        super().__init__(f"producer {quoted(producer)} is at epoch {epoch}", producer=producer, epoch=epoch)
        self.epoch = epoch


class OffsetGoneError(TopicStateError):
    """An offset that leads nowhere any more: of an earlier stream of that name, or of records that are lost."""

    code = "offset_gone"


class RetryLaterError(TopicsError):
    """Nothing is wrong with the request or the topic; the server cannot take it now."""


class ThrottledError(RetryLaterError):
    """A resource cap is reached, or the server is under pressure. Made by one of the two class methods, so that every
    refusal has either the cap or the time to wait."""

    code = "throttled"

    @classmethod
    def over_cap(cls, limit: str, maximum: int) -> Self:
        """`limit` is the name of the cap, such as `max_topics`."""
        return cls(
            f"the limit {limit} = {maximum} is reached. Free resources, or raise the setting", limit=limit, max=maximum
        )

    @classmethod
    def under_pressure(cls, retry_after_ms: int) -> Self:
        return cls(f"the server is under pressure. Retry in {retry_after_ms} ms", retry_after_ms=retry_after_ms)


class AppendTimeoutError(RetryLaterError):
    """The log took too long; whether the append will be there is not known."""

    code = "append_timeout"

    def __init__(self) -> None:
        super().__init__("append timed out; append outcome is unknown, check Stream-Next-Offset before retrying")


class ColdStoreUnavailableError(RetryLaterError):
    """The object store that keeps old segments cannot be asked. The data is neither lost nor damaged."""

    code = "cold_store_unavailable"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"old records are in an object store that does not answer ({why}). Nothing is lost; retry later"
        )


class RemoteUnavailableError(RetryLaterError):
    """The backup storage does not take the log, which class `remote` waits for. With `detail.in_doubt` the operation is
    on the local disk and readable; without it nothing was written."""

    code = "remote_unavailable"

    def __init__(self, why: str, in_doubt: bool = False) -> None:
        written = "The operation is on the local disk only" if in_doubt else "Nothing was written"
        super().__init__(
            f"the backup storage does not take the log, which class remote waits for ({why}). "
            f"{written}; send the request again with the same idempotency key",
            in_doubt=in_doubt,
        )


class LeaseEndedError(RetryLaterError):
    """The lease of the primary could not be renewed in the backup storage. Reads still work. Nothing was written."""

    code = "lease_ended"

    def __init__(self) -> None:
        super().__init__(
            "this server could not renew its lease in the backup storage, and another one may be the primary. "
            "Nothing was written; send the request again, or find the primary with GET /v0/ready",
            retry_after_ms=1000,
        )


class DiskFullError(RetryLaterError):
    """The disk has no room for more. Nothing is lost, and deletes are still taken: they make room."""

    code = "disk_full"

    def __init__(self) -> None:
        super().__init__(
            "the disk is full. Reads and deletes still work. Delete data or add space; writes resume when there "
            "is room",
            retry_after_ms=1000,
        )


class SystemBusyError(RetryLaterError):
    """The system lacked file descriptors or memory for a moment. The data is neither lost nor damaged."""

    code = "system_busy"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the system is out of file descriptors or memory ({why}). Nothing is lost; retry later",
            retry_after_ms=1000,
        )


class SearchUnavailableError(RetryLaterError):
    """The process that searches is not there, or could not answer. Another one is begun by the next search."""

    code = "search_unavailable"


class NotReadyError(RetryLaterError):
    """The log is being replayed after a start; `replay_progress` runs from 0.0 to 1.0."""

    code = "not_ready"

    def __init__(self, replay_progress: float, why: str = "the server is replaying its log") -> None:
        super().__init__(why, replay_progress=replay_progress)


class ShuttingDownError(RetryLaterError):
    """The server finishes what it has accepted and takes nothing new."""

    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class OperatorError(TopicsError):
    """No request can help; the machine or its files need a person."""


class ReadOnlyError(OperatorError):
    """A WAL shard was poisoned by a failed write or sync and takes no more writes.

    After a failed sync the kernel may have dropped the very pages it could not write, so trying again could report
    success over a hole. The only safe way on is a restart, which reads back what is truly there.
    """

    code = "read_only"

    def __init__(self, shard: int, cause: str, vanished: bool = False) -> None:
        """With `vanished` the data folder is gone, and no write or sync has failed."""
        if vanished:
            what = f"log shard {shard} is read-only: {cause}. Put the folder back, then restart the server"
        else:
            what = (
                f"log shard {shard} is read-only after a failed write or sync ({cause}); reads still work. Free or "
                "repair the disk, then restart the server: it recovers everything that was acknowledged as synced"
            )
        super().__init__(what, shard=shard, cause=cause)


class CorruptSegmentError(OperatorError):
    """Stored records `from_seq` to `to_seq`, both included, cannot be read back; they are never replaced by nulls."""

    code = "corrupt_segment"

    def __init__(self, topic: str, from_seq: int, to_seq: int) -> None:
        super().__init__(
            f"topic {quoted(topic)}: the stored records {from_seq} to {to_seq} are damaged; "
            "read from after the range, or run `topics repair`",
            topic=topic,
            from_seq=from_seq,
            to_seq=to_seq,
        )


class DamageError(OperatorError):
    """The data folder holds damage that a crash cannot explain, so starting would hide a loss."""

    code = "damage"

    def __init__(self, findings: Sequence[Finding]) -> None:
        if not findings:
            raise ValueError("damage without a finding")
        self.findings = tuple(findings)
        first = self.findings[0]
        super().__init__(
            f"the data folder is damaged in {len(findings)} place(s), first in {first.where}: {first.what}. "
            "Nothing was changed. List all of it with `topics verify`, then restore a backup or run `topics repair`",
            findings=[msgspec.structs.asdict(finding) for finding in self.findings],
        )


class NewerFormatError(OperatorError):
    """A file is intact and of a format that this release does not know. To skip it would lose what a newer release
    acknowledged, and a repair would cut it out; so everything that reads the folder stops here."""

    code = "newer_format"

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(
            f"{where or 'the data folder'} holds {what}, which this release does not know. A newer release wrote it. "
            "Nothing was changed. Start that release or a later one on this folder",
            where=where,
            what=what,
        )
        self.what = what
        self.where = where

    def at(self, where: str) -> "NewerFormatError":
        """The same error, naming the file where it does not yet."""
        return self if self.where else NewerFormatError(self.what, where)


class FolderBusyError(OperatorError):
    """Another process owns the data folder; two writers would destroy it."""

    code = "folder_busy"

    def __init__(self, folder: str, owner: str | None = None) -> None:
        by = f" by {owner}" if owner else ""
        super().__init__(f"the data folder {folder} is in use{by}", folder=folder, owner=owner)


# Errors of backups; `topics.model.errors` has the tree that these are in.


class BackupRunningError(RetryLaterError):
    """Backups are taken one after the other."""

    code = "backup_running"

    def __init__(self) -> None:
        super().__init__("another backup is running. Wait until it is complete")


class BackupFailedError(RetryLaterError):
    """The checkpoint failed, or the place could not be written to. Earlier backups are as they were."""

    code = "backup_failed"

    def __init__(self, why: str) -> None:
        super().__init__(f"the backup failed: {why}. Earlier backups are unchanged")


class NotPrimaryError(RetryLaterError):
    """Another server is the primary, or this one is a standby. Nothing was read or written."""

    code = "not_primary"

    def __init__(self, primary: str) -> None:
        where = f"Send the request to {primary}" if primary else "Find the primary with GET /v0/ready"
        super().__init__(f"this server is not the primary. {where}", primary=primary or None)


class BackupTargetError(TopicsError):
    """The backups do not have the state that was asked for, or there is no room for it where it should go."""

    code = "backup_target"


class NoBackupPlaceError(OperatorError):
    """The server was not told where backups go."""

    code = "no_backup_place"

    def __init__(self, what: str = "the server has no backup storage") -> None:
        super().__init__(f"{what}. Start the server with TOPICS_BACKUP_DIR")


class DamagedBackupError(OperatorError):
    """Files of a backup are missing or are not what was written. Nothing was restored."""

    code = "damaged_backup"

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        shown = "; ".join(f"{name}: {why}" for name, why in files[:3]) + ("; …" if len(files) > 3 else "")
        super().__init__(
            f"the backup is damaged in {len(files)} file(s), and nothing was restored: {shown}",
            files=[{"name": name, "why": why} for name, why in files],
        )


# How a transaction can be refused; `topics.model.errors` has the tree that these are in.


class TransactionTooLargeError(InvalidRequestError):
    """A transaction would hold more than one may."""

    code = "transaction_too_large"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"a transaction holds at most {limit} {what}", what=what, max=limit)


class TransactionStateError(TopicsError):
    """The request is sound, the transaction is not in a state to take it."""


class TransactionNotFoundError(TransactionStateError):
    """No such transaction is open: it was never begun, was aborted, or has expired with what was staged."""

    code = "transaction_not_found"

    def __init__(self, transaction: str) -> None:
        super().__init__(f"transaction {quoted(transaction)} is not open. Begin it again", transaction=transaction)


class TransactionForeignError(TransactionStateError):
    """Another key began the transaction, and it is still open."""

    code = "transaction_foreign"

    def __init__(self, transaction: str) -> None:
        super().__init__(f"transaction {quoted(transaction)} was begun by another key", transaction=transaction)


class TransactionFencedError(TransactionStateError):
    """Another attempt, or a later sequence of the same id, was begun since."""

    code = "transaction_fenced"

    def __init__(self, transaction: str, sequence: int) -> None:
        super().__init__(
            f"another attempt at transaction {quoted(transaction)} has taken over",
            transaction=transaction,
            sequence=sequence,
        )


class TransactionSequenceError(TransactionStateError):
    """A later sequence of the id was committed already."""

    code = "transaction_sequence"

    def __init__(self, transaction: str, sequence: int, committed: int) -> None:
        super().__init__(
            f"sequence {sequence} of transaction {quoted(transaction)} is older than {committed}, which is committed",
            transaction=transaction,
            sequence=sequence,
            committed=committed,
        )


class TransactionIncompleteError(TransactionStateError):
    """A commit names parts that are not staged."""

    code = "transaction_incomplete"

    def __init__(self, transaction: str, missing: Sequence[str]) -> None:
        super().__init__(
            f"{len(missing)} parts of {quoted(transaction)} are not staged, among them {quoted(missing[0])}",
            transaction=transaction,
            missing=len(missing),
            first_missing=missing[0],
        )


class TransactionBusyError(RetryLaterError):
    """A commit of the transaction is on its way: nothing else can be done to it until that is decided."""

    code = "transaction_busy"

    def __init__(self, transaction: str) -> None:
        super().__init__(f"a commit of transaction {quoted(transaction)} is on its way", transaction=transaction)
