"""Errors of calls, as one tree. Each branch corresponds to the caller's next step.

    ClientError
    ├── ConnectionFailed                the server was not reached, or left without an answer; look at `maybe_done`
    │   └── ClientClosed                the client was closed, before the call or while it waited
    ├── GapError                        a follower met lost records, and was told to raise
    └── ApiError                        the server refused; `code` has the reason
        ├── RequestRefused              change the request; sending it again is in vain
        │   ├── InvalidRequest          invalid_request
        │   │   ├── BatchTooLarge       batch_too_large
        │   │   ├── RecordTooLarge      record_too_large
        │   │   └── TransactionTooLarge transaction_too_large
        │   ├── InvalidJson             invalid_json
        │   ├── PayloadTooLarge         payload_too_large
        │   ├── HeadersTooLarge         headers_too_large
        │   ├── UnsupportedMediaType    unsupported_media_type
        │   ├── UnsupportedMessage      unsupported_message
        │   ├── NotAcceptable           not_acceptable
        │   ├── UpgradeRequired         upgrade_required
        │   ├── ExpectationFailed       expectation_failed
        │   ├── NotFound                not_found
        │   ├── MethodNotAllowed        method_not_allowed
        │   ├── FeatureMissing          not_implemented
        │   ├── RequestTimeout          request_timeout
        │   └── AppendTimeout           append_timeout
        ├── AccessRefused               use another key
        │   ├── Unauthorized            unauthorized
        │   ├── Forbidden               forbidden
        │   └── TransactionForeign      transaction_foreign
        ├── StateRefused                look at the topic, then decide
        │   ├── TopicNotFound           topic_not_found
        │   ├── TopicExistsIncompatible topic_exists_incompatible
        │   ├── TopicNotEmpty           topic_not_empty
        │   ├── TopicFull               topic_full
        │   ├── IdempotencyConflict     idempotency_conflict
        │   ├── StreamClosed            stream_closed
        │   ├── StreamGone              stream_gone
        │   ├── StreamConflict          stream_conflict
        │   ├── SystemStream            system_stream
        │   ├── OffsetGone              offset_gone
        │   ├── SequenceConflict        sequence_conflict
        │   ├── ProducerFenced          producer_fenced
        │   ├── ProducerGap             producer_gap
        │   ├── NotAQueue               not_a_queue
        │   ├── RouterNotFound          router_not_found
        │   ├── ConsumerNotFound        consumer_not_found
        │   ├── ScheduleNotFound        schedule_not_found
        │   ├── JobNotFound             job_not_found
        │   ├── TopicRecreated          topic_recreated
        │   ├── HeadMismatch            head_mismatch
        │   ├── FenceMismatch           fence_mismatch
        │   ├── RouterCycle             router_cycle
        │   ├── TransactionNotFound     transaction_not_found
        │   ├── TransactionFenced       transaction_fenced
        │   ├── TransactionSequence     transaction_sequence
        │   └── TransactionIncomplete   transaction_incomplete
        ├── RetryLater                  the client already tried again until its deadline; try again later
        │   ├── Throttled               throttled
        │   ├── ColdStoreUnavailable    cold_store_unavailable
        │   ├── RemoteUnavailable       remote_unavailable
        │   ├── LeaseEnded              lease_ended
        │   ├── NotPrimary              not_primary
        │   ├── SearchUnavailable       search_unavailable
        │   ├── DiskFull                disk_full
        │   ├── SystemBusy              system_busy
        │   ├── TransactionBusy         transaction_busy
        │   ├── BackupRunning           backup_running
        │   ├── BackupFailed            backup_failed
        │   ├── NotReady                not_ready
        │   ├── SlowConsumer            slow_consumer
        │   └── ShuttingDown            shutting_down
        ├── ServerTrouble               a person looks at the server
        │   ├── InternalError           internal
        │   ├── ReadOnly                read_only
        │   ├── CorruptSegment          corrupt_segment
        │   ├── Damage                  damage
        │   ├── NewerFormat             newer_format
        │   ├── NoBackupPlace           no_backup_place
        │   ├── DamagedBackup           damaged_backup
        │   └── FolderBusy              folder_busy
        └── UnexpectedAnswer            what answered does not speak this API: a proxy, or another server

A code that a newer server invents is a plain `ApiError`: its `status` and `code` are all there is to know.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from topics_protocol.records import Gap


class Unsendable(ValueError):
    """Something that was given makes no request, such as a name that no path can hold. Not of the tree: nothing was
    asked of a server."""


class ClientError(Exception):
    """The root of everything that this package raises about a call."""

    maybe_done: bool = False
    """Whether the request may have been carried out all the same, in this try or in an earlier one of the call."""


class ConnectionFailed(ClientError):
    """The server that the message names did not answer."""

    def __init__(self, message: str, *, maybe_done: bool) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


class ClientClosed(ConnectionFailed):
    """The client was closed."""

    def __init__(self, *, maybe_done: bool = False) -> None:
        super().__init__("the client is closed", maybe_done=maybe_done)


class GapError(ClientError):
    """A follower with `raise_on_gap` met a `Gap`."""

    def __init__(self, topic: str, gap: "Gap") -> None:
        super().__init__(f"topic {topic}: the records {gap.gap_from} to {gap.gap_to} are lost ({gap.reason})")
        self.topic = topic
        self.gap = gap


class ApiError(ClientError):
    """The server refused. Branch on the class or on `code`; `message` is for people and may change."""

    by_code: ClassVar[dict[str, type["ApiError"]]] = {}
    """Every class with exactly one code."""

    def __init_subclass__(cls, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            ApiError.by_code[code] = cls

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: Mapping[str, object] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message} (HTTP status {status})" if status else f"{code}: {message}")
        self.status = status
        """0 for a refusal on a WebSocket, which has none."""
        self.code = code
        self.message = message
        self.detail: dict[str, object] = dict(detail or {})
        """Structured context; which keys there are depends on the code."""
        self.retry_after_s = retry_after_s
        """How long the server asked to be left alone, if it did."""


class RequestRefused(ApiError):
    """The request is invalid in every state of the server. Change it."""


class InvalidRequest(RequestRefused, code="invalid_request"):
    """A name, a field or a value is not acceptable; `detail["field"]` names it where that is known."""


class BatchTooLarge(InvalidRequest, code="batch_too_large"):
    """More records than one append may carry: split it."""


class RecordTooLarge(InvalidRequest, code="record_too_large"):
    """A record is over its byte limit, or a batch is larger than the topic could ever hold."""


class TransactionTooLarge(InvalidRequest, code="transaction_too_large"):
    """A transaction would hold more parts, records or bytes than one may."""


class InvalidJson(RequestRefused, code="invalid_json"):
    """A message on a WebSocket was no command."""


class PayloadTooLarge(RequestRefused, code="payload_too_large"):
    """The body as a whole is over the server's limit: split it."""


class HeadersTooLarge(RequestRefused, code="headers_too_large"):
    """The headers are over the server's limit."""


class UnsupportedMediaType(RequestRefused, code="unsupported_media_type"):
    """The body was not sent as JSON."""


class UnsupportedMessage(RequestRefused, code="unsupported_message"):
    """A message on a WebSocket was not text."""


class UpgradeRequired(RequestRefused, code="upgrade_required"):
    """The path speaks WebSocket only."""


class NotAcceptable(RequestRefused, code="not_acceptable"):
    """The server cannot answer in the form that was asked for."""


class ExpectationFailed(RequestRefused, code="expectation_failed"):
    """The server does not support the `Expect` header of the request."""


class NotFound(RequestRefused, code="not_found"):
    """There is nothing at this path; for a missing topic see `TopicNotFound`."""


class MethodNotAllowed(RequestRefused, code="method_not_allowed"):
    """The path exists, and this cannot be done with it."""


class FeatureMissing(RequestRefused, code="not_implemented"):
    """The server does not know how to do this."""


class RequestTimeout(RequestRefused, code="request_timeout"):
    """The request arrived too slowly."""


class AppendTimeout(RequestRefused, code="append_timeout"):
    """The log of a stream took too long: whether the append will be there is not known."""

    maybe_done = True


class AccessRefused(ApiError):
    """The key is missing, unknown, or lacks a right. Use another key."""


class Unauthorized(AccessRefused, code="unauthorized"):
    """There is no key, or the server does not know it."""


class Forbidden(AccessRefused, code="forbidden"):
    """The key lacks the scope, or may not touch this name."""


class TransactionForeign(AccessRefused, code="transaction_foreign"):
    """Another key began the transaction, and it is still open."""


class StateRefused(ApiError):
    """The topic or the transaction cannot accept the request. Check its state."""


class TopicNotFound(StateRefused, code="topic_not_found"):
    """There is no such topic, and this request was not allowed to create it."""


class TopicExistsIncompatible(StateRefused, code="topic_exists_incompatible"):
    """The change cannot be made to what exists, such as turning a log into a queue."""


class TopicNotEmpty(StateRefused, code="topic_not_empty"):
    """A deletion on the condition that the topic is empty found records."""


class TopicFull(StateRefused, code="topic_full"):
    """A topic that rejects rather than drops is at its cap; nothing was appended."""


class IdempotencyConflict(StateRefused, code="idempotency_conflict"):
    """The idempotency key was used for other records; nothing was appended. `detail` has the seqs of the first time."""


class StreamClosed(StateRefused, code="stream_closed"):
    """The topic is a stream that was closed; it takes nothing more."""


class StreamGone(StateRefused, code="stream_gone"):
    """The topic is a stream that was deleted while forks of it exist; its name is not free yet."""


class StreamConflict(StateRefused, code="stream_conflict"):
    """The stream exists with another content type, lifetime, or source than requested."""


class OffsetGone(StateRefused, code="offset_gone"):
    """The offset is of an earlier stream of this name, or the entries after it are lost: read from the start."""


class SequenceConflict(StateRefused, code="sequence_conflict"):
    """The stream has had this `seq`, or a later one."""


class SystemStream(StateRefused, code="system_stream"):
    """The server alone writes this stream; it can only be read."""


class ProducerFenced(StateRefused, code="producer_fenced"):
    """A producer of the same id with a later epoch took over."""


class ProducerGap(StateRefused, code="producer_gap"):
    """The stream has not received the producer's previous number."""


class NotAQueue(StateRefused, code="not_a_queue"):
    """A queue operation on a topic that is a log."""


class RouterNotFound(StateRefused, code="router_not_found"):
    """There is no such router."""


class ScheduleNotFound(StateRefused, code="schedule_not_found"):
    """There is no such schedule."""


class ConsumerNotFound(StateRefused, code="consumer_not_found"):
    """The topic has no consumer of that name."""


class JobNotFound(StateRefused, code="job_not_found"):
    """The queue has no such job."""


class TopicRecreated(StateRefused, code="topic_recreated"):
    """The topic was deleted and created again since: its seqs are others."""


class HeadMismatch(StateRefused, code="head_mismatch"):
    """The topic has another head than the append expected: another writer was faster."""


class FenceMismatch(StateRefused, code="fence_mismatch"):
    """The topic has another fence token than the append named: another writer has taken over."""


class RouterCycle(StateRefused, code="router_cycle"):
    """The router would send records round in a circle."""


class TransactionNotFound(StateRefused, code="transaction_not_found"):
    """No such transaction is open: it was never begun, was aborted, or has expired with its staged records."""


class TransactionFenced(StateRefused, code="transaction_fenced"):
    """Another attempt, or a later sequence of the same id, was begun since."""


class TransactionSequence(StateRefused, code="transaction_sequence"):
    """A later sequence of the id was committed already."""


class TransactionIncomplete(StateRefused, code="transaction_incomplete"):
    """The commit names parts that are not staged."""


class RetryLater(ApiError):
    """The server cannot take the request now. The client retried until its deadline; try later."""


class Throttled(RetryLater, code="throttled"):
    """The server is under pressure, or at the cap that `detail["limit"]` names."""


class ColdStoreUnavailable(RetryLater, code="cold_store_unavailable"):
    """Old records are in an object store that the server cannot reach now; nothing is lost."""


class RemoteUnavailable(RetryLater, code="remote_unavailable"):
    """The backup storage does not take the log, which class `remote` waits for. With `detail["in_doubt"]` the write is
    on the server's disk; a retry with the same idempotency key is written once."""


class LeaseEnded(RetryLater, code="lease_ended"):
    """The server could not renew its lease in the backup storage; another one may be the primary. Nothing was
    written."""


class NotPrimary(RetryLater, code="not_primary"):
    """Another server is the primary; `detail["primary"]` has its URL, where it is known."""


class SearchUnavailable(RetryLater, code="search_unavailable"):
    """The process that searches is not there, or could not answer; everything else works."""


class TransactionBusy(RetryLater, code="transaction_busy"):
    """A commit of the transaction is in progress."""


class NotReady(RetryLater, code="not_ready"):
    """The server replays its log; `detail["replay_progress"]` runs from 0.0 to 1.0."""


class DiskFull(RetryLater, code="disk_full"):
    """The server's disk has no room for more. Deletes still work, and writing goes on by itself once there is room."""


class BackupRunning(RetryLater, code="backup_running"):
    """A backup is being taken; the next one can begin when it is done."""


class BackupFailed(RetryLater, code="backup_failed"):
    """The place for backups could not be written to or read. Earlier backups are as they were."""


class SystemBusy(RetryLater, code="system_busy"):
    """The server's system lacked file descriptors or memory for a moment."""


class SlowConsumer(RetryLater, code="slow_consumer"):
    """A WebSocket's client did not read its messages for too long."""


class ShuttingDown(RetryLater, code="shutting_down"):
    """The server is stopping and accepts no new requests."""


class ServerTrouble(ApiError):
    """The server or its machine needs a person. Inspect the server."""

    maybe_done = True


class InternalError(ServerTrouble, code="internal"):
    """A bug in the server; its log has the traceback."""


class ReadOnly(ServerTrouble, code="read_only"):
    """A disk failed, and the server refuses writes until a restart. The outcome of a write in flight is unknown."""


class CorruptSegment(ServerTrouble, code="corrupt_segment"):
    """Stored records cannot be read back: `detail` has `from_seq` and `to_seq`; reading on from the latter works."""


class Damage(ServerTrouble, code="damage"):
    """The server's data folder is damaged."""


class NewerFormat(ServerTrouble, code="newer_format"):
    """The data folder holds files that a newer release wrote."""


class NoBackupPlace(ServerTrouble, code="no_backup_place"):
    """The server was started without a place for backups."""


class DamagedBackup(ServerTrouble, code="damaged_backup"):
    """Files of a backup are missing or damaged."""


class FolderBusy(ServerTrouble, code="folder_busy"):
    """Another process owns the server's data folder."""


class UnexpectedAnswer(ApiError):
    """The answer is not of this API. Check the URL and the proxy."""

    maybe_done = True

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(status, "unexpected_answer", message, None, retry_after_s)


_OTHER_WORDS = {"bad_request": "invalid_request", "overloaded": "throttled"}
"""Words of /v1 that are equivalent to a code."""
_COARSE: dict[str, type[ApiError]] = {"conflict": StateRefused, "gone": StateRefused, "unavailable": RetryLater}
_COARSE |= dict.fromkeys(
    ("FENCED", "ALREADY_CLAIMED", "NO_PENDING_WORK", "SUBSCRIPTION_NOT_FOUND", "SUBSCRIPTION_CONFLICT"), StateRefused
)
_COARSE |= {"INVALID_TOKEN": AccessRefused, "WEBHOOK_URL_REJECTED": RequestRefused}
"""Words of /v1 that cover several codes, for codes of newer servers."""


def refusal(
    status: int, code: str, message: str, detail: Mapping[str, object] | None, retry_after_s: float | None
) -> ApiError:
    """The exception for an error answer, by its code. /v1 has a coarse code, and the code of the class in
    `detail.reason`.
    """
    reason = (detail or {}).get("reason")
    if isinstance(reason, str) and reason in ApiError.by_code:
        code = reason
    code = _OTHER_WORDS.get(code, code)
    cls = ApiError.by_code.get(code) or _COARSE.get(code, ApiError)
    return cls(status, code, message, detail, retry_after_s)
