"""Transactions: records for several topics, staged unseen and committed at once, once for each id and sequence."""

from topics.engine.transactions.messages import (
    BeginRequest,
    StagedResult,
    StageRequest,
    TransactionRef,
    TransactionResult,
)
from topics.engine.transactions.transactions import Transactions

__all__ = [
    "BeginRequest",
    "StageRequest",
    "StagedResult",
    "TransactionRef",
    "TransactionResult",
    "Transactions",
]
