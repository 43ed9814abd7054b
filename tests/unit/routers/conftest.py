"""Helpers for tests of routers; on the caller's stack a forward is complete when an append returns."""

from tests.unit.conftest import Answers, clock, disk, engine, one
from topics.engine.engine import Engine
from topics.model.router_rules import Guarantee, RouterRules, RouterWish
from topics.routers.registry import Router
from topics.routers.routers import RouterPutResult, RouterRemoveResult

__all__ = ["clock", "disk", "engine"]

EXACTLY_ONCE = Guarantee.EXACTLY_ONCE


def wish_of(source: str, dest: str, **given: object) -> RouterWish:
    """A wish; other arguments than its fields are its rules."""
    own = {name: given.pop(name) for name in ("create_dest", "from_seq") if name in given}
    return RouterWish(source=source, dest=dest, rules=RouterRules(**given), **own)  # type: ignore[arg-type]


def ask_route(engine: Engine, source: str, dest: str, name: str = "", **given: object) -> Answers:
    answers: Answers = []
    engine.put_router(name or f"{source}->{dest}", wish_of(source, dest, **given), answers.append)
    return answers


def route(engine: Engine, source: str, dest: str, name: str = "", **given: object) -> RouterPutResult:
    return one(ask_route(engine, source, dest, name, **given), RouterPutResult)


def ask_unroute(engine: Engine, name: str) -> Answers:
    answers: Answers = []
    engine.remove_router(name, answers.append)
    return answers


def unroute(engine: Engine, name: str) -> RouterRemoveResult:
    return one(ask_unroute(engine, name), RouterRemoveResult)


def router(engine: Engine, name: str) -> Router:
    return engine.routing.router(name)


def go_on(engine: Engine) -> Engine:
    """Does the work of a server after a start: forwards the pending records."""
    engine.routing.kick()
    return engine
