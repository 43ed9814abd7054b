"""The routes of transactions, with what they need and what they answer."""

from topics.api.app import Route
from topics.api.auth import Scope
from topics.api.openapi_operation import Operation
from topics.api.v0 import transactions
from topics.core.limits import MIB
from topics.wire.transactions import AbortBody, CommitBody, StageAnswer, StageBody, TransactionAnswer, TransactionBody

_WRITES = ("read_only", "shutting_down")
_OPEN = ("transaction_not_found", "transaction_foreign", "transaction_fenced", "transaction_sequence",
         "transaction_busy", *_WRITES)  # fmt: skip
_REFUSED = ("topic_not_found", "topic_full", "stream_closed", "stream_gone")

TRANSACTION_ROUTES = (
    Route(
        "POST", "/v0/transactions", transactions.begin, Scope.WRITE, takes_body=True,
        operation=Operation(
            "beginTransaction", "Begin an attempt at a transaction, or join it.",
            {200: TransactionAnswer, 201: TransactionAnswer},
            ("transaction_foreign", "transaction_fenced", "transaction_sequence", "transaction_busy", *_WRITES),
            TransactionBody, True,
        ),
    ),
    Route(
        "GET", "/v0/transactions/{transaction}", transactions.look, Scope.WRITE, free_name=True,
        operation=Operation(
            "getTransaction", "The open transaction of an id, or its last commit.", {200: TransactionAnswer},
            ("transaction_not_found", "transaction_foreign"),
        ),
    ),
    Route(
        "POST", "/v0/transactions/{transaction}/stage", transactions.stage, Scope.WRITE, takes_body=True,
        free_name=True, large_body=True,
        operation=Operation(
            "stage", "Keep records unseen until the transaction is committed.", {200: StageAnswer},
            ("batch_too_large", "record_too_large", "transaction_too_large", *_REFUSED, *_OPEN), StageBody, True,
        ),
    ),
    Route(
        "POST", "/v0/transactions/{transaction}/commit", transactions.commit, Scope.WRITE, takes_body=True,
        free_name=True, body_bytes_max=4 * MIB,
        operation=Operation(
            "commitTransaction", "Make all that is staged visible at once, once.", {200: TransactionAnswer},
            ("record_too_large", "transaction_incomplete", "corrupt_segment", *_REFUSED, *_OPEN), CommitBody, True,
        ),
    ),
    Route(
        "POST", "/v0/transactions/{transaction}/abort", transactions.abort, Scope.WRITE, takes_body=True,
        free_name=True,
        operation=Operation(
            "abortTransaction", "End a transaction; what was staged is gone.", {200: TransactionAnswer}, _OPEN,
            AbortBody, True,
        ),
    ),
)  # fmt: skip
