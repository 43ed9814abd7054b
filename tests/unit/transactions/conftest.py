"""Transactions, asked for synchronously."""

from itertools import count

from tests.unit.conftest import Answers, one
from topics.engine.engine import Engine
from topics.model.records import Record
from topics.transactions.transaction_state import (
    BeginRequest,
    StagedResult,
    StageRequest,
    TransactionRef,
    TransactionResult,
)

_NUMBERS = count()


def anywhere(name: str) -> None:
    """Everybody may write everywhere."""


def begin(engine: Engine, name: str = "t", sequence: int = 1, **request: object) -> TransactionResult:
    answers: Answers = []
    requested = BeginRequest(id=name, sequence=sequence, **request)  # type: ignore[arg-type]
    engine.transactions.begin(requested, anywhere, answers.append)
    return one(answers, TransactionResult)


def ref(name: str = "t", sequence: int = 1, attempt: str | None = None, owner: str = "") -> TransactionRef:
    return TransactionRef(id=name, sequence=sequence, attempt=attempt, owner=owner)


def stage(engine: Engine, topic: str, *values: object, part: str = "", **more: object) -> StagedResult:
    answers: Answers = []
    which = more.pop("ref", None) or ref()
    records = [value if isinstance(value, Record) else Record.of(value) for value in values]
    request = StageRequest(
        ref=which,  # type: ignore[arg-type]
        topic=topic,
        records=records,
        part=part or f"part-{next(_NUMBERS)}",
        **more,  # type: ignore[arg-type]
    )
    engine.transactions.stage(request, answers.append)
    return one(answers, StagedResult)


def ask_commit(engine: Engine, which: TransactionRef | None = None, parts: list[str] | None = None) -> Answers:
    answers: Answers = []
    engine.transactions.commit(which or ref(), parts, anywhere, answers.append)
    return answers


def commit(engine: Engine, which: TransactionRef | None = None, parts: list[str] | None = None) -> TransactionResult:
    return one(ask_commit(engine, which, parts), TransactionResult)


def abort(engine: Engine, which: TransactionRef | None = None) -> TransactionResult:
    answers: Answers = []
    engine.transactions.abort(which or ref(), answers.append)
    return one(answers, TransactionResult)
