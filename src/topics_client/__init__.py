"""The Python client: `Client` is synchronous, `AsyncClient` is for asyncio, with the same calls.

    with Client("http://127.0.0.1:4000") as client:
        client.append("jobs", {"resize": "a.png"})
        for item in client.follow("jobs"):
            print(item)

Calls return the structs of `answers`, and raise the tree of `errors`. Each name is imported on first use. The package
imports nothing of the server.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics_client._async.client import AsyncClient
    from topics_client._async.loops import AsyncConsumer, AsyncFollower, AsyncStreamLoop, AsyncTail, AsyncWatcher
    from topics_client._async.producer import AsyncProducer
    from topics_client._async.transaction import AsyncTransaction
    from topics_client._async.websocket import AsyncSocket
    from topics_client._async.worker import AsyncWorker
    from topics_client._sync.client import Client
    from topics_client._sync.loops import Consumer, Follower, StreamLoop, Tail, Watcher
    from topics_client._sync.producer import Producer
    from topics_client._sync.transaction import Transaction
    from topics_client._sync.websocket import Socket
    from topics_client._sync.worker import Worker
    from topics_client.answers import (
        Acked,
        Appended,
        BackupInfo,
        BackupList,
        BackupStarted,
        Claimed,
        ConsumerCommitted,
        ConsumerDropped,
        ConsumerPage,
        ConsumerPut,
        ConsumerState,
        Deleted,
        Diff,
        Extended,
        Fence,
        Health,
        JobChanged,
        JobFailure,
        JobOutcome,
        JobPage,
        JobState,
        Lease,
        LeasePage,
        Nacked,
        Placed,
        QueueCounters,
        QueuePaused,
        Ready,
        Redriven,
        RouterDropped,
        RouterPage,
        RouterPut,
        RouterState,
        RouterSummary,
        ScheduleDropped,
        SchedulePage,
        SchedulePut,
        ScheduleState,
        ScheduleSummary,
        Staged,
        Token,
        TopicDropped,
        TopicPage,
        TopicPut,
        TopicState,
        TopicSummary,
        TransactionState,
        WhoAmI,
    )
    from topics_client.errors import (
        AccessRefused,
        ApiError,
        AppendTimeout,
        BackupFailed,
        BackupRunning,
        BatchTooLarge,
        ClientClosed,
        ClientError,
        ColdStoreUnavailable,
        ConnectionFailed,
        ConsumerNotFound,
        CorruptSegment,
        Damage,
        DamagedBackup,
        ExpectationFailed,
        FeatureMissing,
        FenceMismatch,
        FolderBusy,
        Forbidden,
        GapError,
        HeadersTooLarge,
        HeadMismatch,
        IdempotencyConflict,
        InternalError,
        InvalidJson,
        InvalidRequest,
        JobNotFound,
        LeaseEnded,
        MethodNotAllowed,
        NewerFormat,
        NoBackupPlace,
        NotAcceptable,
        NotAQueue,
        NotFound,
        NotPrimary,
        NotReady,
        OffsetGone,
        PayloadTooLarge,
        ProducerFenced,
        ProducerGap,
        ReadOnly,
        RecordTooLarge,
        RemoteUnavailable,
        RequestRefused,
        RequestTimeout,
        RetryLater,
        RouterCycle,
        RouterNotFound,
        ScheduleNotFound,
        SearchUnavailable,
        SequenceConflict,
        ServerTrouble,
        ShuttingDown,
        SlowConsumer,
        StateRefused,
        StreamClosed,
        StreamConflict,
        StreamGone,
        SystemStream,
        Throttled,
        TopicExistsIncompatible,
        TopicFull,
        TopicNotEmpty,
        TopicNotFound,
        TopicRecreated,
        TransactionBusy,
        TransactionFenced,
        TransactionForeign,
        TransactionIncomplete,
        TransactionNotFound,
        TransactionSequence,
        TransactionTooLarge,
        Unauthorized,
        UnexpectedAnswer,
        UnsupportedMediaType,
        UnsupportedMessage,
        UpgradeRequired,
    )
    from topics_client.inbox import CaughtUp, TopicFailed, TopicGap, TopicGone, TopicRecord
    from topics_client.options import ClientOptions, RetryPolicy
    from topics_client.streams.contents import ProducerMark, StreamAppended, StreamPage, StreamState, StreamSummary
    from topics_client.streams.contracts import Boundary, InferredSearch, Lens, RoutingKey, StreamProfile, StreamSchema
    from topics_client.streams.inspection import IndexStatus, StreamDetails, StreamInfo
    from topics_client.streams.searches import (
        Aggregate,
        Bucket,
        BucketGroup,
        Coverage,
        Highlight,
        Hit,
        RoutingKeyPage,
        SearchPage,
        SearchTotal,
        SkippedStream,
        StreamsSearchPage,
        TopicCoverage,
        TopicHit,
        TopicSearchPage,
    )
    from topics_client.streams.subscriptions import Subscription, Wake, WakeAcked, WakeStream
    from topics_client.streams.touches import Activated, Touched, TouchState, TouchTemplate
    from topics_client.worker_state import FailJob, JobRetry, RetryJob
    from topics_protocol.config import (
        Discard,
        Durability,
        Guarantee,
        TagMatch,
        TopicConfig,
        TopicConfigPatch,
        TopicType,
    )
    from topics_protocol.records import Gap, Job, NewRecord, Record

__all__ = [
    "AccessRefused", "Acked", "Activated", "Aggregate", "ApiError", "AppendTimeout", "Appended", "AsyncClient",
    "AsyncConsumer", "AsyncFollower", "AsyncProducer", "AsyncSocket", "AsyncStreamLoop", "AsyncTail",
    "AsyncTransaction", "AsyncWatcher", "AsyncWorker", "BackupFailed", "BackupInfo", "BackupList", "BackupRunning",
    "BackupStarted", "BatchTooLarge", "Boundary", "Bucket", "BucketGroup", "CaughtUp", "Claimed", "Client",
    "ClientClosed", "ClientError", "ClientOptions", "ColdStoreUnavailable", "ConnectionFailed", "Consumer",
    "ConsumerCommitted", "ConsumerDropped", "ConsumerNotFound", "ConsumerPage", "ConsumerPut", "ConsumerState",
    "CorruptSegment", "Coverage", "Damage", "DamagedBackup", "Deleted", "Diff", "Discard", "Durability",
    "ExpectationFailed", "Extended", "FailJob", "FeatureMissing", "Fence", "FenceMismatch", "FolderBusy", "Follower",
    "Forbidden", "Gap", "GapError", "Guarantee", "HeadMismatch", "HeadersTooLarge", "Health", "Highlight", "Hit",
    "IdempotencyConflict", "IndexStatus", "InferredSearch", "InternalError", "InvalidJson", "InvalidRequest", "Job",
    "JobChanged", "JobFailure", "JobNotFound", "JobOutcome", "JobPage", "JobRetry", "JobState", "Lease", "LeaseEnded",
    "LeasePage", "Lens", "MethodNotAllowed", "Nacked", "NewRecord", "NewerFormat", "NoBackupPlace", "NotAQueue",
    "NotAcceptable", "NotFound", "NotPrimary", "NotReady", "OffsetGone", "PayloadTooLarge", "Placed", "Producer",
    "ProducerFenced", "ProducerGap", "ProducerMark", "QueueCounters", "QueuePaused", "ReadOnly", "Ready", "Record",
    "RecordTooLarge", "Redriven", "RemoteUnavailable", "RequestRefused", "RequestTimeout", "RetryJob", "RetryLater",
    "RetryPolicy", "RouterCycle", "RouterDropped", "RouterNotFound", "RouterPage", "RouterPut", "RouterState",
    "RouterSummary", "RoutingKey", "RoutingKeyPage", "ScheduleDropped", "ScheduleNotFound", "SchedulePage",
    "SchedulePut", "ScheduleState", "ScheduleSummary", "SearchPage", "SearchTotal", "SearchUnavailable",
    "SequenceConflict", "ServerTrouble", "ShuttingDown", "SkippedStream", "SlowConsumer", "Socket", "Staged",
    "StateRefused", "StreamAppended", "StreamClosed", "StreamConflict", "StreamDetails", "StreamGone", "StreamInfo",
    "StreamLoop", "StreamPage", "StreamProfile", "StreamSchema", "StreamState", "StreamSummary", "StreamsSearchPage",
    "Subscription", "SystemStream", "TagMatch", "Tail", "Throttled", "Token", "TopicConfig", "TopicConfigPatch",
    "TopicCoverage", "TopicDropped", "TopicExistsIncompatible", "TopicFailed", "TopicFull", "TopicGap", "TopicGone",
    "TopicHit", "TopicNotEmpty", "TopicNotFound", "TopicPage", "TopicPut", "TopicRecord", "TopicRecreated",
    "TopicSearchPage", "TopicState", "TopicSummary", "TopicType", "TouchState", "TouchTemplate", "Touched",
    "Transaction", "TransactionBusy", "TransactionFenced", "TransactionForeign", "TransactionIncomplete",
    "TransactionNotFound", "TransactionSequence", "TransactionState", "TransactionTooLarge", "Unauthorized",
    "UnexpectedAnswer", "UnsupportedMediaType", "UnsupportedMessage", "UpgradeRequired", "Wake", "WakeAcked",
    "WakeStream", "Watcher", "WhoAmI", "Worker",
]  # fmt: skip

_NAMES = {
    "topics_client._async.client": "AsyncClient",
    "topics_client._async.loops": "AsyncConsumer AsyncFollower AsyncStreamLoop AsyncTail AsyncWatcher",
    "topics_client._async.producer": "AsyncProducer",
    "topics_client._async.transaction": "AsyncTransaction",
    "topics_client._async.websocket": "AsyncSocket",
    "topics_client._async.worker": "AsyncWorker",
    "topics_client._sync.client": "Client",
    "topics_client._sync.loops": "Consumer Follower StreamLoop Tail Watcher",
    "topics_client._sync.producer": "Producer",
    "topics_client._sync.transaction": "Transaction",
    "topics_client._sync.websocket": "Socket",
    "topics_client._sync.worker": "Worker",
    "topics_client.answers": (
        "Acked Appended BackupInfo BackupList BackupStarted Claimed ConsumerCommitted ConsumerDropped ConsumerPage "
        "ConsumerPut ConsumerState Deleted Diff Extended Fence Health JobChanged JobFailure JobOutcome JobPage "
        "JobState Lease LeasePage Nacked Placed QueueCounters QueuePaused Ready Redriven RouterDropped RouterPage "
        "RouterPut RouterState RouterSummary ScheduleDropped SchedulePage SchedulePut ScheduleState ScheduleSummary "
        "Staged Token TopicDropped TopicPage TopicPut TopicState TopicSummary TransactionState WhoAmI"
    ),
    "topics_client.errors": (
        "AccessRefused ApiError AppendTimeout BackupFailed BackupRunning BatchTooLarge ClientClosed ClientError "
        "ColdStoreUnavailable ConnectionFailed ConsumerNotFound CorruptSegment Damage DamagedBackup ExpectationFailed "
        "FeatureMissing FenceMismatch FolderBusy Forbidden GapError HeadMismatch HeadersTooLarge IdempotencyConflict "
        "InternalError InvalidJson InvalidRequest JobNotFound LeaseEnded MethodNotAllowed NewerFormat NoBackupPlace "
        "NotAQueue NotAcceptable NotFound NotPrimary NotReady OffsetGone PayloadTooLarge ProducerFenced ProducerGap "
        "ReadOnly RecordTooLarge RemoteUnavailable RequestRefused RequestTimeout RetryLater RouterCycle "
        "RouterNotFound ScheduleNotFound SearchUnavailable SequenceConflict ServerTrouble ShuttingDown SlowConsumer "
        "StateRefused StreamClosed StreamConflict StreamGone SystemStream Throttled TopicExistsIncompatible TopicFull "
        "TopicNotEmpty TopicNotFound TopicRecreated TransactionBusy TransactionFenced TransactionForeign "
        "TransactionIncomplete TransactionNotFound TransactionSequence TransactionTooLarge Unauthorized "
        "UnexpectedAnswer UnsupportedMediaType UnsupportedMessage UpgradeRequired"
    ),
    "topics_client.inbox": "CaughtUp TopicFailed TopicGap TopicGone TopicRecord",
    "topics_client.options": "ClientOptions RetryPolicy",
    "topics_client.streams.contents": "ProducerMark StreamAppended StreamPage StreamState StreamSummary",
    "topics_client.streams.contracts": "Boundary InferredSearch Lens RoutingKey StreamProfile StreamSchema",
    "topics_client.streams.inspection": "IndexStatus StreamDetails StreamInfo",
    "topics_client.streams.searches": (
        "Aggregate Bucket BucketGroup Coverage Highlight Hit RoutingKeyPage SearchPage SearchTotal SkippedStream "
        "StreamsSearchPage TopicCoverage TopicHit TopicSearchPage"
    ),
    "topics_client.streams.subscriptions": "Subscription Wake WakeAcked WakeStream",
    "topics_client.streams.touches": "Activated TouchState TouchTemplate Touched",
    "topics_client.worker_state": "FailJob JobRetry RetryJob",
    "topics_protocol.config": "Discard Durability Guarantee TagMatch TopicConfig TopicConfigPatch TopicType",
    "topics_protocol.records": "Gap Job NewRecord Record",
}
"""The public names by their modules. Each module is imported when one of its names is first used."""


_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    module = _HOME.get(name)
    value = _submodule(name) if module is None else getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def _submodule(name: str) -> object:
    """A module such as `topics_client.errors`, which need not be imported by itself."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
