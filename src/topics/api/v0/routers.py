"""Routers: PUT, GET, list, DELETE.

A key with prefixes must be allowed the router's name and both of its topics for every request.
"""

import msgspec

from topics.api.app import Call
from topics.api.auth import Scope, check_found
from topics.api.v0.request_parsing import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    allowed_prefixes,
    decode_body,
    read_cursor,
    write_cursor,
)
from topics.model.errors import TopicsError
from topics.model.router_rules import RouterRules, RouterWish, parse_match
from topics.routers.routers import RouterInfo, RouterPutResult, RouterRemoveResult
from topics_protocol.v0 import (
    RouterAnswer,
    RouterBody,
    RouterDropAnswer,
    RouterListAnswer,
    RouterPutAnswer,
    RouterSummary,
)

_encode = msgspec.json.Encoder().encode
_decode_router = msgspec.json.Decoder(RouterBody).decode


def put_router(call: Call) -> None:
    body = decode_body("router", _decode_router, call.exchange.body)
    call.key.check(Scope(0), body.source)
    call.key.check(Scope(0), body.dest)
    _check_existing(call)
    rules = RouterRules(
        preserve_node=body.preserve_node,
        preserve_tag=body.preserve_tag,
        filter=None if body.filter is None else parse_match(body.filter, "filter"),
        allow_cycle=body.allow_cycle,
        guarantee=body.guarantee,
    )

    def done(outcome: RouterPutResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
            return
        info, rules = outcome.info, outcome.info.rules
        answer = RouterPutAnswer(
            router=info.router, created=outcome.created, source=info.source, dest=info.dest,
            preserve_node=rules.preserve_node, preserve_tag=rules.preserve_tag, filter=_filter(rules),
            allow_cycle=rules.allow_cycle, guarantee=rules.guarantee,
        )  # fmt: skip
        call.reply(201 if outcome.created else 200, _encode(answer))

    wish = RouterWish(
        source=body.source, dest=body.dest, rules=rules, create_dest=body.create_dest, from_seq=body.from_seq
    )
    call.engine.put_router(call.topic, wish, done)


def get_router(call: Call) -> None:
    info = call.engine.router(call.topic)
    check_found(call.key, (info.source, info.dest), "the router")
    rules = info.rules
    answer = RouterAnswer(
        router=info.router, source=info.source, dest=info.dest, preserve_node=rules.preserve_node,
        preserve_tag=rules.preserve_tag, filter=_filter(rules), allow_cycle=rules.allow_cycle,
        guarantee=rules.guarantee, forwarded_total=info.forwarded_total, lag=info.lag, blocked=info.blocked,
        blocked_by=info.blocked_by or msgspec.UNSET,
        blocked_seq=info.blocked_seq or msgspec.UNSET,
    )  # fmt: skip
    call.reply(200, _encode(answer))


def list_routers(call: Call) -> None:
    query, key = call.query, call.key
    page_size = call.number("page_size", PAGE_SIZE, PAGE_SIZE_MAX)
    after = read_cursor(query.get("cursor", ""))
    source, dest = query.get("source"), query.get("dest")

    def requested(info: RouterInfo) -> bool:
        allowed = key.may_touch(info.source) and key.may_touch(info.dest)
        return allowed and source in (None, info.source) and dest in (None, info.dest)

    found: list[RouterInfo] = []
    for prefix in allowed_prefixes(query.get("prefix", ""), key.prefixes):
        found += call.engine.list_routers(prefix, after, page_size + 1 - len(found), requested)
        if len(found) > page_size:
            break
    page = found[:page_size]
    routers = [
        RouterSummary(
            router=info.router, source=info.source, dest=info.dest, guarantee=info.rules.guarantee,
            forwarded_total=info.forwarded_total,
        )
        for info in page
    ]  # fmt: skip
    cursor = write_cursor(page[-1].router) if len(found) > page_size else msgspec.UNSET
    call.reply(200, _encode(RouterListAnswer(routers=routers, next_cursor=cursor)))


def delete_router(call: Call) -> None:
    _check_existing(call)

    def done(outcome: RouterRemoveResult | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            call.refuse(outcome)
        else:
            call.reply(200, _encode(RouterDropAnswer(router=outcome.router, deleted=outcome.deleted)))

    call.engine.remove_router(call.topic, done)


def _check_existing(call: Call) -> None:
    router = call.engine.routing.registry.by_name.get(call.topic)
    if router is not None and router.dest is not None:
        check_found(call.key, (router.source.name, router.dest.name), "the router")


def _filter(rules: RouterRules) -> tuple[str, str, str] | None:
    return None if rules.filter is None else rules.filter.to_wire()
