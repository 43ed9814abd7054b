"""All /v0 routes, with their requirements and answers."""

from topics.api.app import Operation, Parameter, Route
from topics.api.auth import Scope
from topics.api.v0 import backups, records, routers, topics, websocket
from topics.api.v0.appends import BatchedAppends
from topics.model.records import AppendBody
from topics.model.topic_config import TopicConfigPatch
from topics_protocol.v0 import (
    AppendAnswer,
    DeleteAnswer,
    DeleteBody,
    DiffAnswer,
    DiffBody,
    DropAnswer,
    FenceAnswer,
    FenceBody,
    ListAnswer,
    PutAnswer,
    RouterAnswer,
    RouterBody,
    RouterDropAnswer,
    RouterListAnswer,
    RouterPutAnswer,
    TokenAnswer,
    TokenBody,
    TopicAnswer,
)

_BOOLEAN: dict[str, object] = {"type": "boolean"}
_STRICT = Parameter(
    "strict", _BOOLEAN, "Whether a config with an unknown field is refused. Default: the setting `strict_config`."
)
_STREAMS = Parameter("streams", _BOOLEAN, "Include streams whose names topics cannot have. Default: false.")
_WRITES = ("read_only", "shutting_down", "remote_unavailable", "no_backup_place", "lease_ended", "not_primary")

V0_ROUTES = (
    Route(
        "GET", "/v0/topics", topics.list_topics, Scope.READ,
        operation=Operation(
            "listTopics", "Topics with their state, a page at a time.", {200: ListAnswer},
            query=(
                Parameter("prefix", {"type": "string"}, "Only names with this prefix."),
                Parameter("contains", {"type": "string"}, "Only names that contain this text; case is ignored."),
                Parameter("sort", {"type": "string"},
                    "`name`; or `count`, `bytes` or `head_seq` with `:asc` or `:desc`, of the first 20,000 "
                    "matching names."),
                Parameter("page_size", {"type": "integer", "minimum": 0},
                    "Size of the page, clamped to 1 to 1000. Default: 100."),
                Parameter("cursor", {"type": "string"}, "`next_cursor` of the previous page."),
                Parameter("touch", _BOOLEAN, "Whether listing counts as consuming each topic. Default: false."),
                Parameter("total", _BOOLEAN, "Whether the answer has a `total`. Default: false."),
                Parameter("system", _BOOLEAN,
                    "With `streams`: include the system streams. Default: whether `prefix` begins with `_`."),
                _STREAMS,
            ),
        ),
    ),
    Route(
        "PUT", "/v0/topics/{topic}", topics.put_topic, Scope.ADMIN, takes_body=True,
        operation=Operation(
            "putTopic", "Create a topic, or replace its config.", {200: PutAnswer, 201: PutAnswer},
            ("topic_exists_incompatible", "stream_gone", *_WRITES), TopicConfigPatch, query=(_STRICT,),
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}", topics.get_topic, Scope.READ,
        operation=Operation(
            "getTopic", "A topic's state.", {200: TopicAnswer}, ("topic_not_found",),
            query=(
                Parameter("touch", _BOOLEAN,
                    "Whether the request counts as consuming the topic. Default: true."), _STREAMS,
            ),
            any_name=True,
        ),
    ),
    Route(
        "DELETE", "/v0/topics/{topic}", topics.drop_topic, Scope.DELETE,
        operation=Operation(
            "deleteTopic", "Delete a topic with everything in it.", {200: DropAnswer}, ("topic_not_empty", *_WRITES),
            query=(Parameter("if_empty", _BOOLEAN,
                "Refuse to delete a topic with live records or appends in flight."),),
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}", records.append, Scope.WRITE, takes_body=True, large_body=True,
        batching=BatchedAppends,
        operation=Operation(
            "append", "Append records, all or none.", {200: AppendAnswer, 201: AppendAnswer},
            (
                "batch_too_large", "record_too_large", "topic_not_found", "not_a_queue", "idempotency_conflict",
                "topic_full", "stream_closed", "stream_gone", "head_mismatch", "fence_mismatch", *_WRITES,
            ),
            AppendBody, True,
            (Parameter("return_seqs", _BOOLEAN, "Whether the answer has `seqs`. Default: true."), _STRICT),
        ),
    ),
    Route(
        "GET", "/v0/topics/{topic}/fence", topics.get_fence, Scope.READ,
        operation=Operation("getFence", "The fence token of a topic.", {200: FenceAnswer}, ("topic_not_found",)),
    ),
    Route(
        "PUT", "/v0/topics/{topic}/fence", topics.put_fence, Scope.WRITE, takes_body=True,
        operation=Operation(
            "putFence", "Set the fence token of a topic: appends that name another one are refused.",
            {200: FenceAnswer}, ("topic_not_found", "fence_mismatch", *_WRITES), FenceBody, True,
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/diff", records.diff, Scope.READ, takes_body=True,
        operation=Operation(
            "diff", "The records behind a cursor, and any loss in front of them.", {200: DiffAnswer},
            ("topic_not_found", "corrupt_segment", "cold_store_unavailable"), DiffBody,
            query=(_STREAMS,), any_name=True,
        ),
    ),
    Route(
        "POST", "/v0/topics/{topic}/delete", records.delete, Scope.DELETE, takes_body=True,
        operation=Operation(
            "deleteRecords", "Delete records for good.", {200: DeleteAnswer},
            ("topic_not_found", "corrupt_segment", "cold_store_unavailable", *_WRITES), DeleteBody, True,
        ),
    ),
    Route(
        "GET", "/v0/ws", websocket.open_socket, query_short_token=True,
        operation=Operation(
            "openSocket", "A WebSocket to publish and to follow topics over.", {101: ""}, ("upgrade_required",),
            query=(_STRICT, Parameter("token", {"type": "string"}, "A short-lived token, for browsers.")),
        ),
    ),
    Route(
        "POST", "/v0/tokens", backups.create_token, takes_body=True,
        operation=Operation(
            "createToken", "A short-lived token that stands for the key in a URL.", {200: TokenAnswer}, (), TokenBody,
        ),
    ),
    Route(
        "GET", "/v0/routers", routers.list_routers, Scope.READ,
        operation=Operation(
            "listRouters", "Routers, in the order of their names.", {200: RouterListAnswer},
            query=(
                Parameter("prefix", {"type": "string"}, "Only names with this prefix."),
                Parameter("source", {"type": "string"}, "Only routers from this topic."),
                Parameter("dest", {"type": "string"}, "Only routers into this topic."),
                Parameter("page_size", {"type": "integer", "minimum": 0},
                    "Size of the page, clamped to 1 to 1000. Default: 100."),
                Parameter("cursor", {"type": "string"}, "`next_cursor` of the previous page."),
            ),
        ),
    ),
    Route(
        "PUT", "/v0/routers/{router}", routers.put_router, Scope.ADMIN, takes_body=True,
        operation=Operation(
            "putRouter", "Create a router, or change what it does.", {200: RouterPutAnswer, 201: RouterPutAnswer},
            ("topic_not_found", "router_cycle", "topic_exists_incompatible", "stream_closed", "stream_gone", *_WRITES),
            RouterBody, True,
        ),
    ),
    Route(
        "GET", "/v0/routers/{router}", routers.get_router, Scope.READ,
        operation=Operation("getRouter", "Get the config and the progress of a router.", {200: RouterAnswer},
                            ("router_not_found",)),
    ),
    Route(
        "DELETE", "/v0/routers/{router}", routers.delete_router, Scope.DELETE,
        operation=Operation("deleteRouter", "Delete a router; what it forwarded stays.", {200: RouterDropAnswer},
                            _WRITES),
    ),
)  # fmt: skip
