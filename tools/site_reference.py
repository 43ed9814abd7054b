"""Reference tables of the documentation site, generated from the code when the site is built.

A page names its table with a comment, such as `<!-- generated: settings -->`, which the site build replaces. Names that
follow are arguments, as in `<!-- generated: fields AppendBody Record -->`. In the repository the page links to the
source of the table instead. The tests of the pages read pages with their tables.
"""

import ast
import importlib
import inspect
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from enum import EnumType
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

import msgspec

import topics_client

if TYPE_CHECKING:
    from cyclopts import App

    from topics.api.metrics import Snapshot
    from topics.model.errors import TopicsError

ROOT = Path(__file__).parents[1]
_MARK = re.compile(r"^<!-- generated: (?P<table>\w+)(?P<names>(?: [\w/{}]+)*) -->$", re.MULTILINE)

FORMAT_MODULES = (
    "topics.log.frame",
    "topics.model.records",
    "topics.log.segment",
    "topics.log.snapshot_files",
    "topics.log.catalog",
    "topics.log.catalog_files",
    "topics.streams.stream_frames",
    "topics.routers.router_frames",
    "topics.log.forward_frames",
    "topics.queues.queue_frames",
    "topics.transactions.transaction_frames",
    "topics.search.file_index.file_format",
)


def built(name: str) -> str:
    """A page, named from the root of the repository, as the site shows it: with its generated tables."""
    return with_tables((ROOT / name).read_text(encoding="utf-8"))


def with_tables(markdown: str) -> str:
    """A page with each comment that names a table replaced by the table."""
    return _MARK.sub(lambda match: "\n".join(TABLES[match["table"]](*match["names"].split())), markdown)


# Formats


def formats() -> Iterator[str]:
    """The byte tables and the structures of the modules that own formats."""
    for name in FORMAT_MODULES:
        module = importlib.import_module(name)
        yield f"### `{name}`"
        yield ""
        for table in indented_blocks(module):
            yield f"```\n{table}\n```"
            yield ""
        if structures := list(_structures(module)):
            yield "| structure | fields, in order |"
            yield "|---|---|"
            yield from structures
            yield ""


def indented_blocks(module: ModuleType) -> list[str]:
    """The parts of a module's docstring that are indented: byte tables, drawings, bodies."""
    found: list[list[str]] = [[]]
    for line in (module.__doc__ or "").splitlines():
        if line.startswith("    "):
            found[-1].append(line[4:])
        elif found[-1]:
            found.append([])
    return ["\n".join(lines) for lines in found if lines]


def _structures(module: ModuleType) -> Iterator[str]:
    """A row for each msgpack array that a module defines."""
    for name, found in vars(module).items():
        if not isinstance(found, type) or found.__module__ != module.__name__ or name.startswith("_"):
            continue
        if issubclass(found, msgspec.Struct) and found.__struct_config__.array_like:
            yield f"| `{name}` | {', '.join(f'`{field}`' for field in found.__struct_fields__)} |"


def layout() -> Iterator[str]:
    """The paths of a data folder."""
    from topics.log import layout as paths  # noqa: PLC0415

    yield "\n".join(["```", (paths.__doc__ or "").partition("\n\n")[2].strip(), "```"])


def _attribute_docs(found: type) -> dict[str, str]:
    """The texts below the attributes of a class, by attribute."""
    docs = {}
    body = ast.parse(inspect.getsource(found)).body[0].body  # type: ignore[attr-defined]
    for before, node in itertools.pairwise(body):
        if isinstance(node, ast.Expr) and isinstance(before, ast.Assign | ast.AnnAssign):
            target = before.target if isinstance(before, ast.AnnAssign) else before.targets[0]
            if isinstance(target, ast.Name):
                docs[target.id] = " ".join(ast.literal_eval(node.value).split())
    return docs


def kinds() -> Iterator[str]:
    """The kinds of frames with their meaning."""
    from topics.log import frame  # noqa: PLC0415

    meanings = _attribute_docs(frame.FrameKind)
    yield "| number | kind | meaning |"
    yield "|---|---|---|"
    for kind in frame.FrameKind:
        yield f"| {kind.value} | {kind.name} | {meanings[kind.name]} |"


def versions() -> Iterator[str]:
    """The binary formats with the versions that this release knows."""
    from topics.log.layout import FORMATS  # noqa: PLC0415

    yield "| format | where its version is | written | read | any other version |"
    yield "|---|---|---|---|---|"
    for known in FORMATS:
        yield f"| {' | '.join(known)} |"


def files() -> Iterator[str]:
    """The files of a data folder: how each is written, when it is valid, and its states after a crash."""
    from topics.log.layout import FILES  # noqa: PLC0415

    yield "| file | written | valid | after a crash |"
    yield "|---|---|---|---|"
    for rule in FILES:
        yield f"| {' | '.join(rule)} |"


# Settings, metrics, commands


def limits() -> Iterator[str]:
    """The settings that limit requests, keys and the server."""
    from topics.model.settings import SETTINGS  # noqa: PLC0415

    yield "| limit | default | meaning |"
    yield "|---|---|---|"
    for setting in SETTINGS:
        if setting.name.startswith("max_"):
            yield f"| `{setting.name}` | {setting.default} | {setting.help} |"


def settings() -> Iterator[str]:
    """Every setting with its default, the values it accepts and its meaning."""
    from topics.model.settings import SETTINGS  # noqa: PLC0415 - each table imports what it describes

    yield "| setting | default | accepted | meaning |"
    yield "|---|---|---|---|"
    for setting in SETTINGS:
        default = "not set" if setting.default is None else f"`{setting.default}`"
        accepted = setting.accepted.removeprefix("one of ").removeprefix("a whole number ")
        accepted = accepted.removeprefix("a non-empty ").replace("of at least", "at least")
        yield f"| `{setting.name}` | {default} | {accepted} | {setting.help} |"


def metrics() -> Iterator[str]:
    """Every metric with its type and help."""
    text = every_metric().text().decode()
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", text, re.MULTILINE))
    yield "| metric | type | meaning |"
    yield "|---|---|---|"
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        yield f"| `{name}` | {kind} | {helps[name]} |"


def every_metric() -> "Snapshot":
    """The metrics of a server with a queue, a log, an object store and connections: all metrics that exist."""
    from topics.api.app import Api  # noqa: PLC0415
    from topics.api.auth import KeyRing  # noqa: PLC0415
    from topics.api.metrics import ServerState, Snapshot  # noqa: PLC0415
    from topics.api.operator_routes import OpsHandlers, no_pipeline  # noqa: PLC0415
    from topics.engine.core import EngineOptions  # noqa: PLC0415
    from topics.engine.engine import Engine  # noqa: PLC0415
    from topics.http.messages import HttpLimits  # noqa: PLC0415
    from topics.http.server import HttpServer  # noqa: PLC0415
    from topics.log.object_store.local_cache import LocalCopies  # noqa: PLC0415
    from topics.log.object_store.tiered_fs import tiered_for_server  # noqa: PLC0415
    from topics.model.records import Batch, Record  # noqa: PLC0415
    from topics.model.settings import Settings  # noqa: PLC0415
    from topics.model.topic_config import TopicConfigPatch, TopicType  # noqa: PLC0415
    from topics.server import stream_routes  # noqa: PLC0415
    from topics.system.clock import SystemClock  # noqa: PLC0415
    from topics.system.process import process_numbers  # noqa: PLC0415
    from topics.testing import FakeDisk, FolderStore, ManualClock, SeededEntropy  # noqa: PLC0415

    disk, url = FakeDisk(), "s3://bucket/cold"
    copies = LocalCopies(disk, "data/near", 0)
    fs = tiered_for_server(disk, url, FolderStore(FakeDisk(), "store"), copies, lambda: 0.0)
    options = EngineOptions(data_dir="data", wal_shards=1, cold_dir=url)
    engine = Engine.recover(fs, options, ManualClock(), SeededEntropy(1), boot_id="a")
    engine.put_topic("jobs", TopicConfigPatch(type=TopicType.QUEUE), lambda outcome: None)
    engine.append("events", Batch(records=[Record.of(1)]), lambda outcome: None)
    clock = SystemClock()
    api = Api(OpsHandlers(clock, stream_routes(Settings())).routes(), KeyRing([]), clock, 1, 0)
    state = ServerState(ready=True, recovery_progress=1.0, uptime_ms=1)
    measured = Snapshot(state, engine, HttpServer(api, HttpLimits(), clock), no_pipeline())
    measured.route_counters, measured.process = api.route_counters, process_numbers()
    return measured


def commands() -> Iterator[str]:
    """Every command of the command line with the first line of its help."""
    from topics.cli import app  # noqa: PLC0415

    yield "| command | effect |"
    yield "|---|---|"
    for name, text in commands_of(app, "topics"):
        yield f"| `{name}` | {text} |"


def commands_of(app: "App", path: str) -> Iterator[tuple[str, str]]:
    """The commands below a command group, each with the first line of its help."""
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        if any(not one.startswith("-") for one in command):
            yield from commands_of(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command.help.partition("\n")[0]


# Messages of the API


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI document of a server."""
    from topics.api.operator_routes import OpsHandlers  # noqa: PLC0415
    from topics.model.settings import Settings  # noqa: PLC0415
    from topics.server import stream_routes  # noqa: PLC0415
    from topics.system.clock import SystemClock  # noqa: PLC0415

    handlers = OpsHandlers(SystemClock(), stream_routes(Settings()))
    handlers.routes()
    document: dict[str, Any] = msgspec.json.decode(handlers.description)
    return document


def fields(*messages: str) -> Iterator[str]:
    """Every field of the messages, with its default in a request and its meaning."""
    in_request = any(name.endswith(("Body", "From", "Record", "Config")) for name in messages)
    yield "| field | default | meaning |" if in_request else "| field | meaning |"
    yield "|---|---|---|" if in_request else "|---|---|"
    for name in messages:
        schema = openapi()["components"]["schemas"][name]
        for field, described in schema["properties"].items():
            default = _default(field, described, schema) if in_request else None
            cells = [f"`{field}`", *([] if default is None else [default]), described["description"]]
            yield f"| {' | '.join(cells)} |"


def _default(field: str, described: dict[str, Any], schema: dict[str, Any]) -> str:
    if field in schema.get("required", ()):
        return "required"
    default = described.get("default")
    return "" if default is None and "Default:" in described["description"] else f"`{json.dumps(default)}`"


def body(path: str) -> Iterator[str]:
    """The fields of the request body of a route that is called by POST."""
    content = openapi()["paths"][path]["post"]["requestBody"]["content"]
    yield from _properties(content["application/json"]["schema"])


def answer(path: str, *parts: str) -> Iterator[str]:
    """The fields of an answer to POST, or of a part of it."""
    schema = openapi()["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    for part in parts:
        schema = schema["properties"][part]
    yield from _properties(schema)


def _properties(schema: dict[str, Any]) -> Iterator[str]:
    yield "| field | meaning |"
    yield "|---|---|"
    for field, described in schema["properties"].items():
        yield f"| `{field}` | {described['description']} |"


def websocket_fields(message: str) -> Iterator[str]:
    """The fields of a WebSocket command, or of all frames."""
    from topics.api.v0.websocket_help import FIELDS  # noqa: PLC0415

    head, *described = FIELDS[message]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in described:
        yield f"| {' | '.join(row)} |"


def parameters(method: str, path: str) -> Iterator[str]:
    """The query parameters of a route."""
    yield "| parameter | meaning |"
    yield "|---|---|"
    for parameter in openapi()["paths"][path][method.lower()]["parameters"]:
        if parameter["in"] == "query":
            yield f"| `{parameter['name']}` | {parameter['description']} |"


_PAGES = "docs/api"
_ROUTE = re.compile(r"^`(?P<method>GET|PUT|POST|DELETE) (?P<path>/\S*)`", re.MULTILINE)


def routes() -> Iterator[str]:
    """Every route with its scopes, its summary and the section that describes it."""
    from topics.api.auth import Scope  # noqa: PLC0415
    from topics.api.operator_routes import OpsHandlers  # noqa: PLC0415
    from topics.model.settings import Settings  # noqa: PLC0415
    from topics.server import stream_routes  # noqa: PLC0415
    from topics.system.clock import SystemClock  # noqa: PLC0415

    described = dict(_sections())
    yield "| route | scope | effect |"
    yield "|---|---|---|"
    for route in OpsHandlers(SystemClock(), stream_routes(Settings())).routes().all:
        name = f"{route.method} {route.path}"
        scopes = " and ".join(str(scope.name).lower() for scope in Scope if scope in route.scopes)
        summary = route.operation.summary.rstrip(".") if route.operation else "page for people"
        shown = f"[{summary}]({described[name]})" if name in described else summary
        yield f"| `{name}` | {f'`{scopes}`' if scopes else 'none'} | {shown} |"
    yield "| `GET /console` | none | [console](../console.md) |"


def _sections() -> Iterator[tuple[str, str]]:
    """The routes that begin a section, with links to the sections from the page of the API."""
    for page in sorted((ROOT / _PAGES).glob("*.md")):
        heading = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("## "):
                heading = re.sub(r"[^\w\- ]", "", line[3:].lower()).replace(" ", "-")
            elif match := _ROUTE.match(line):
                yield f"{match['method']} {match['path']}", f"{page.name}#{heading}" if heading else page.name


# Log events, connector options, the glossary


def log_events(table: str) -> Iterator[str]:
    """A table of log events with the action of an operator."""
    from topics.system import log_events as events  # noqa: PLC0415

    yield "| level | event | action |"
    yield "|---|---|---|"
    for level, names, action in getattr(events, table):
        yield f"| {level} | {', '.join(f'`{name}`' for name in names)} | {action} |"


def connector_options(table: str) -> Iterator[str]:
    """The options of reads or writes of the Spark connector."""
    from topics.spark.connector import option_help  # noqa: PLC0415

    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for row in getattr(option_help, table):
        yield f"| {' | '.join(row)} |"


def glossary(table: str) -> Iterator[str]:
    """A table of terms of docs/glossary.toml."""
    terms = tomllib.loads((ROOT / "docs/glossary.toml").read_text(encoding="utf-8"))[table]
    yield "| term | meaning | also known as | module |"
    yield "|---|---|---|---|"
    for term, cells in terms.items():
        yield f"| {' | '.join([term, *cells])} |"


# Errors


def errors(base: str) -> Iterator[str]:
    """The codes of the error classes below a base class, or with `http` the codes without a class in the engine."""
    from topics.api.error_help import ERROR_HELP  # noqa: PLC0415
    from topics.api.error_responses import STATUS_BY_CODE, V1_STATUS_BY_CODE  # noqa: PLC0415
    from topics.model import errors as model  # noqa: PLC0415

    statuses = STATUS_BY_CODE | V1_STATUS_BY_CODE
    classes = {found.code: found for found in _classes(model.TopicsError) if found.__module__ == model.__name__}
    yield "| code | status | class | detail | meaning | action |"
    yield "|---|---|---|---|---|---|"
    for code, (detail, meaning, action) in ERROR_HELP.items():
        found = classes.get(code)
        bases = ["http"] if found is None else [one.__name__ for one in found.__mro__]
        if base not in bases or (base == "TopicsError" and found is not model.TopicsError):
            continue
        name = "none" if found is None else f"`{found.__name__}`"
        yield f"| `{code}` | {statuses.get(code, 'none')} | {name} | {detail} | {meaning} | {action} |"


def _classes(root: type["TopicsError"]) -> Iterator[type["TopicsError"]]:
    """The classes of a tree that define a code."""
    if "code" in vars(root):
        yield root
    for child in root.__subclasses__():
        yield from _classes(child)


# The Python client


def calls() -> Iterator[str]:
    """Every call of the Python client with its arguments, its result and the first paragraph of its help."""
    yield "| call | returns | meaning |"
    yield "|---|---|---|"
    for name in dir(topics_client.Client):
        call = getattr(topics_client.Client, name)
        if name.startswith("_") or not callable(call):
            continue
        signature = inspect.signature(call)
        arguments = ", ".join(argument for argument in signature.parameters if argument != "self")
        paragraph = " ".join((inspect.getdoc(call) or "").split("\n\n")[0].split())
        returned = re.sub(r"\b(?:\w+\.)+", "", str(_type_name(signature.return_annotation)))
        yield f"| `{name}({arguments})` | {returned} | {paragraph} |".replace(" | None`", " or None`")

    yield ""
    yield "| type | fields |"
    yield "|---|---|"
    for name, fields in _client_types():
        yield f"| `{name}` | {', '.join(f'`{field}`' for field in fields)} |"


def client_errors() -> Iterator[str]:
    """The error classes of the client: each base class with its meaning, its classes and their codes."""
    from topics_client.errors import ApiError, ClientError  # noqa: PLC0415

    yield "| class | classes and codes | meaning |"
    yield "|---|---|---|"
    for base in [
        *ApiError.__subclasses__(),
        *(found for found in _below(ClientError) if not issubclass(found, ApiError)),
    ]:
        codes = [found for found in _below(base) if issubclass(found, ApiError)]
        named = ", ".join(f"`{found.__name__}`{_code_of(found)}" for found in codes)
        yield f"| `{base.__name__}` | {named} | {' '.join((base.__doc__ or '').split())} |"


def _below(root: type) -> Iterator[type]:
    child: type
    for child in root.__subclasses__():
        yield child
        yield from _below(child)


def _code_of(found: type) -> str:
    """The code of a class whose name is not the code in camel case."""
    from topics_client.errors import ApiError  # noqa: PLC0415

    code = next(code for code, one in ApiError.by_code.items() if one is found)
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", found.__name__).lower()
    return "" if code == snake else f" (`{code}`)"


def client_options() -> Iterator[str]:
    """The options of a client."""
    from topics_client.options import ClientOptions  # noqa: PLC0415

    meanings = _attribute_docs(ClientOptions)
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    options = ClientOptions()
    for field in ClientOptions.__struct_fields__:
        default = getattr(options, field)
        shown = str(default).lower() if isinstance(default, int | float) else f"`{default!r}`"
        yield f"| `{field}` | {shown} | {meanings[field]} |"


def _client_types() -> Iterator[tuple[str, list[str]]]:
    """The types of the client that have fields or members."""
    for name in topics_client.__all__:
        found = getattr(topics_client, name)
        if isinstance(found, EnumType):
            yield name, [str(value) for value in found._value2member_map_]
        elif isinstance(found, type) and issubclass(found, msgspec.Struct):
            yield name, list(found.__struct_fields__)


def _type_name(annotation: object) -> str:
    if annotation in (None, type(None), inspect.Signature.empty):
        return ""
    return f"`{annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else annotation}`"


TABLES: dict[str, Callable[..., Iterator[str]]] = {
    "formats": formats, "settings": settings, "metrics": metrics, "commands": commands,
    "calls": calls, "fields": fields, "body": body, "answer": answer, "parameters": parameters, "errors": errors,
    "files": files, "websocket_fields": websocket_fields, "limits": limits,
    "layout": layout, "kinds": kinds, "versions": versions,
    "routes": routes, "log_events": log_events, "connector_options": connector_options, "glossary": glossary,
    "client_errors": client_errors, "client_options": client_options,
}  # fmt: skip
