"""How a transaction can be refused; `topics.core.errors` has the tree that these are in."""

from collections.abc import Sequence

from topics.core.errors import InvalidRequestError, RetryLaterError, TopicsError, quoted


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
        super().__init__(f"no transaction {quoted(transaction)} is open", transaction=transaction)


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
