"""The page of the HTTP API: it names everything there is, with the values in force, and its examples run."""

import inspect
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from tests.http.live import LiveServer
from tests.unit.docs.pages import API_PAGES, api_pages, blocks, read, rows, section
from tools.site_reference import built, every_metric, openapi
from topics.api.auth import Scope
from topics.api.operator_routes import OpsHandlers
from topics.model.limits import Limits
from topics.model.records import AppendBody, Record
from topics.model.seq_ranges import LossReason, Tombstone
from topics.model.settings import SETTINGS, Settings
from topics.model.topic_config import DEFAULT_CONFIG, TopicConfig, TopicConfigPatch
from topics.server import stream_routes
from topics.system.clock import SystemClock
from topics_protocol import queues, v0, watch

PAGE = api_pages()
BASE = "http://127.0.0.1:4000"
ROUTES = OpsHandlers(SystemClock(), stream_routes(Settings())).routes()


def first_cells(heading: str) -> list[str]:
    """Every word in backticks of the first cells below a heading."""
    return [word for cells in rows(section(PAGE, heading)) for word in re.findall(r"`([^`]+)`", cells[0])]


# Everything is there


def test_every_route_is_on_the_page_with_its_scopes() -> None:
    listed = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(section(PAGE, "## Routes"))}
    routes = ROUTES.all
    pages = {"GET /console": "none"}
    assert listed == {f"{route.method} {route.path}": words(route.scopes) for route in routes} | pages


def words(scopes: Scope) -> str:
    return " and ".join(str(scope.name).lower() for scope in Scope if scope in scopes) or "none"


def test_first_example_of_class_disk_shows_no_sync() -> None:
    [answer, *_] = blocks(read("docs/api/README.md"), "http")
    assert json.loads(answer.partition("\n\n")[2])["performance"]["fsync_ms"] == 0


@pytest.mark.parametrize("route", [route for route in ROUTES.all if route.operation])
def test_every_query_parameter_is_described(route: Any) -> None:
    # A section begins with its route.
    for parameter in route.operation.query:
        [text] = re.findall(rf"(?s)^`{route.method} {re.escape(route.path)}` .*?(?=^#+ |\Z)", PAGE, re.MULTILINE)
        assert re.search(rf"`\??{parameter.name}(?:=\w+)?`", text), parameter.name


def test_every_config_field_is_on_the_page_with_its_default() -> None:
    listed = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(section(PAGE, "## Topic config"))}
    assert {name: json.loads(default) for name, default in listed.items()} == msgspec.to_builtins(DEFAULT_CONFIG)
    assert set(listed) == set(TopicConfigPatch.__struct_fields__)


def test_the_clamps_of_a_config_are_those_of_the_page() -> None:
    table = section(PAGE, "## Topic config")
    low, high = TopicConfig(lease_ms=0, claim_jitter_ms=0), TopicConfig(lease_ms=2**63, claim_jitter_ms=2**63)
    assert f"clamped to {low.lease_ms} to {high.lease_ms}." in table
    assert f"clamped to {low.claim_jitter_ms} to {high.claim_jitter_ms}." in table


# The section that describes the fields of each message. A message that is not here fails the test below.
_SECTIONS: dict[type, str] = {
    v0.BackupInfo: "## Backups",
    v0.BackupStarted: "## Backups",
    v0.BackupsAnswer: "## Backups",
    AppendBody: "## Append records",
    Record: "## Append records",
    v0.AppendAnswer: "## Append records",
    v0.DiffBody: "## Read records",
    v0.DiffAnswer: "## Read records",
    v0.RecordOut: "## Read records",
    Tombstone: "### Tombstones",
    v0.DeleteBody: "## Delete records",
    v0.DeleteAnswer: "## Delete records",
    v0.PutAnswer: "## Create or configure a topic",
    v0.TopicAnswer: "## Get a topic",
    v0.QueueCounters: "## Get a topic",
    v0.TopicSummary: "## List topics",
    v0.ListAnswer: "## List topics",
    v0.ListTotal: "## List topics",
    v0.DropAnswer: "## Delete a topic",
    v0.FenceBody: "### Set a fence",
    v0.FenceAnswer: "### Set a fence",
    v0.ConsumerBody: "## Create a consumer",
    v0.ConsumerPutAnswer: "## State of a consumer",
    v0.ReadConsumerBody: "## Read behind the cursor",
    v0.CommitConsumerBody: "## Commit a cursor",
    v0.ConsumerCommitAnswer: "## State of a consumer",
    v0.ConsumerOut: "## State of a consumer",
    v0.ConsumerListAnswer: "## State of a consumer",
    v0.ConsumerDropAnswer: "## State of a consumer",
    v0.RouterBody: "## Create or change a router",
    v0.RouterPutAnswer: "## Create or change a router",
    v0.RouterAnswer: "## Get a router",
    v0.RouterSummary: "## List routers",
    v0.RouterListAnswer: "## List routers",
    v0.RouterDropAnswer: "## Delete a router",
    v0.HealthAnswer: "## Health and readiness",
    v0.ReadyAnswer: "## Health and readiness",
    v0.KeyAnswer: "## Own key and limits",
    v0.SelfAnswer: "## Own key and limits",
    v0.PipelineAnswer: "## Pipeline state",
    v0.PipelineRun: "## Pipeline state",
    v0.QuarantinedTopic: "## Pipeline state",
    v0.PipelineProduct: "## Pipeline state",
    v0.PipelineWorker: "## Pipeline state",
    v0.MetricsHistory: "## Metrics history",
    v0.PipelineProcess: "## Pipeline state",
    v0.PipelineJob: "## Pipeline state",
    v0.PipelineRequest: "## Pipeline state",
    v0.PipelinePause: "## Pipeline state",
    v0.TokenBody: "## Tokens",
    v0.TokenAnswer: "## Tokens",
    v0.ErrorAnswer: "### Errors",
    v0.ErrorBody: "### Errors",
    v0.Performance: "### Performance",
    watch.WatchBody: "## Create a watch",
    watch.WatchFrom: "## Create a watch",
    watch.WatchAnswer: "## Create a watch",
    watch.WatchPosition: "## Create a watch",
    queues.ClaimBody: "## Claim jobs",
    queues.ClaimAnswer: "## Claim jobs",
    queues.JobOut: "## Claim jobs",
    queues.JobEvent: "## Claim jobs",
    queues.HeldBody: "## Acknowledge jobs",
    queues.AckBody: "## Acknowledge jobs",
    queues.JobResultOut: "## Result of a job",
    queues.AckAnswer: "## Acknowledge jobs",
    queues.NackBody: "## Return jobs",
    queues.NackAnswer: "## Return jobs",
    queues.ExtendBody: "## Extend leases",
    queues.ExtendAnswer: "## Extend leases",
    queues.RedriveBody: "## Redrive dead letters",
    queues.RedriveAnswer: "## Redrive dead letters",
    queues.JobsAnswer: "## List jobs",
    queues.JobStateOut: "## List jobs",
    queues.JobFailureOut: "## List jobs",
    queues.CancelBody: "## Change a job",
    queues.JobAnswer: "## Change a job",
    queues.QueueBody: "## Pause a queue",
    queues.QueueAnswer: "## Pause a queue",
    queues.LeaseOut: "## List leases",
    queues.LeasesAnswer: "## List leases",
}
# The content of a list cursor is private: to clients it is an opaque text.
_OPAQUE = {v0.PageCursor}


def messages() -> Iterator[type]:
    for module in (v0, queues):
        for _, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, msgspec.Struct) and found.__module__ == module.__name__ and found not in _OPAQUE:
                yield found
    yield from (watch.WatchBody, watch.WatchFrom, watch.WatchAnswer, watch.WatchPosition)


def test_every_event_of_a_watch_is_described_with_its_fields() -> None:
    reported: dict[str, set[str]] = {}
    for cells in rows(section(PAGE, "## Event stream")):
        name = cells[0].strip("`") or list(reported)[-1]
        reported.setdefault(name, set()).update(re.findall(r"`([^`]+)`", cells[1]))
    events: dict[str, type[msgspec.Struct]] = {
        "record": watch.RecordEvent, "tombstone": watch.TombstoneEvent, "caught-up": watch.CaughtUpEvent,
        "topic-deleted": watch.TopicDeletedEvent, "error": watch.ErrorEvent,
    }  # fmt: skip
    assert reported == {
        name: {field.encode_name for field in msgspec.structs.fields(event)} for name, event in events.items()
    }


def test_the_defaults_of_a_watch_are_those_in_force() -> None:
    listed = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(section(PAGE, "## Create a watch"))}
    for field in msgspec.structs.fields(watch.WatchBody):
        if field.default is not msgspec.NODEFAULT and field.default is not None:
            assert json.loads(listed[field.name]) == field.default


def test_every_field_of_the_openapi_document_is_described() -> None:
    schemas = openapi()["components"]["schemas"]
    fields = {(name, field): about for name in schemas for field, about in schemas[name].get("properties", {}).items()}
    assert len(fields) > 300
    missing = [key for key, about in fields.items() if not about.get("description", "").endswith(".")]
    assert missing == [], "describe them in src/topics/api/field_help.py"


@pytest.mark.parametrize("message", [*messages(), Record, Tombstone], ids=lambda message: message.__name__)
def test_every_field_of_a_message_is_described(message: type) -> None:
    described = set(first_cells(_SECTIONS[message]))
    assert {field.encode_name for field in msgspec.structs.fields(message)} - described == set()


def test_every_reason_of_a_tombstone_is_on_the_page() -> None:
    table = section(PAGE, "### Tombstones").split("| reason |")[1]
    assert {cells[0].strip("`") for cells in rows("| reason |" + table)} == {reason.value for reason in LossReason}


def test_the_limits_are_those_in_force() -> None:
    defaults = {setting.name: setting.default for setting in SETTINGS}
    table = rows(section(built("docs/api/README.md"), "## Limits"))
    listed = {cells[0].strip("`"): int(cells[1]) for cells in table if cells[0].startswith("`max_")}
    assert listed == {name: defaults[name] for name in listed}
    assert set(listed) == {name for name in defaults if name.startswith("max_")}


def test_the_defaults_and_clamps_of_a_read_are_those_in_force() -> None:
    limits, reading = Limits(), section(PAGE, "## Read records")
    assert f"0 is {limits.default_limit}," in reading
    assert f"0 is {limits.default_batch_bytes // 2**20} MiB," in reading
    assert f"more than {limits.max_wait_ms} is clamped" in reading


def test_every_metric_is_on_the_page_with_its_type_and_help() -> None:
    text = every_metric().text().decode()
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", text, re.MULTILINE))
    exposed = {name: (kind, helps[name]) for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)}
    table = [cells for cells in rows(built("docs/api/metrics.md")) if len(cells) == 3]
    listed = {cells[0].strip("`"): (cells[1], cells[2]) for cells in table}
    assert listed == exposed
    assert len(listed) > 30


def test_every_short_name_of_the_metrics_is_on_the_page() -> None:
    measured = every_metric()
    answer = json.loads(measured.json())
    long_names = set(re.findall(r"^# TYPE (\w+) \w+$", measured.text().decode(), re.MULTILINE))
    pairs = rows(read("docs/api/metrics.md").split("| short name |")[1].split("\n\n")[0])
    assert {word for cells in pairs for word in re.findall(r"`(\w+)`", cells[0])} == answer.keys() - long_names
    [of_the_log] = [cells[1] for cells in pairs if cells[0] == "`wal`"]
    assert set(re.findall(r"`(\w+)`", of_the_log)) == answer["wal"].keys()


# The examples


class Example(NamedTuple):
    command: list[str]
    """The words of a curl command."""
    answer: str
    """As the page shows it: a status line, headers, an empty line, a body."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


def examples(text: str) -> list[Example]:
    commands, answers = blocks(text, "sh"), blocks(text, "http")
    assert len(commands) == len(answers)
    return [Example(split(command), answer) for command, answer in zip(commands, answers, strict=True)]


def split(command: str) -> list[str]:
    # A shell joins lines that end in a backslash; shlex does not.
    return shlex.split(command.replace("\\\n", " "))


def parse_answer(text: str) -> Answer:
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    status, *lines = head.strip().split("\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(status.split(" ")[1]), {name.lower(): value for name, value in headers.items()}, body)


Runner = Callable[[list[str], str], Answer]


def by_httpx(command: list[str], url: str) -> Answer:
    """Does the same as curl, for the few options the page uses; any other option fails."""
    program, *rest = command
    assert program == "curl"
    method, target, body, headers = "", "", None, {"accept-encoding": "identity"}
    options = iter(rest)
    for option in options:
        if option == "-X":
            method = next(options)
        elif option == "-H":
            name, _, value = next(options).partition(":")
            headers[name.lower()] = value.strip()
        elif option == "-d":
            body = next(options)
        elif option == "--json":
            body = next(options)
            headers |= {"content-type": "application/json", "accept": "application/json"}
        elif option == "--compressed":
            headers["accept-encoding"] = "gzip"
        elif option != "-i":
            assert option.startswith(BASE), option
            target = url + option.removeprefix(BASE)
    method = method or ("GET" if body is None else "POST")
    answer = httpx.request(method, target, content=body, headers=headers, timeout=30.0, trust_env=False)
    return Answer(answer.status_code, dict(answer.headers), answer.text)


def by_curl(command: list[str], url: str) -> Answer:
    words = [word.replace(BASE, url) for word in command]
    # -q: a user's .curlrc is not part of the example.
    done = subprocess.run(
        [words[0], "-q", "-sS", "--noproxy", "*", *words[1:]], capture_output=True, text=True, check=True, timeout=60
    )
    return parse_answer(done.stdout)


RUNNERS = [
    by_httpx,
    pytest.param(by_curl, marks=pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")),
]

# Their values differ from run to run; that they are there, and of which type, does not.
_VOLATILE = {
    "$ts", "last_write_ts", "last_read_ts", "expires_ts", "effective_priority", "uptime_ms", "version",
    "server_total_ms", "wal_append_ms", "fsync_ms", "wid", "stream_url", "lease_id", "deadline", "token", "expires_ms",
    "end_ms", "lag_ms", "created_ms", "committed_ms", "epoch", "source_epoch", "idempotency_key",
}  # fmt: skip
_LEFT_OUT = "…"


def check_same(shown: Any, answered: Any, where: str = "") -> None:
    if isinstance(shown, dict):
        assert isinstance(answered, dict), where
        named = shown.keys() - {_LEFT_OUT}
        assert named <= answered.keys() if _LEFT_OUT in shown else named == answered.keys(), where
        for name in named:
            if name in _VOLATILE:
                assert type(shown[name]) is type(answered[name]), f"{where}.{name}"
            else:
                check_same(shown[name], answered[name], f"{where}.{name}")
    elif isinstance(shown, list):
        assert isinstance(answered, list), where
        assert len(shown) == len(answered), where
        for place, (one, other) in enumerate(zip(shown, answered, strict=True)):
            check_same(one, other, f"{where}[{place}]")
    else:
        assert shown == answered, where


def check_example(example: Example, run: Runner, url: str) -> None:
    shown, answered = parse_answer(example.answer), run(example.command, url)
    assert shown.status == answered.status, answered.body
    assert shown.headers.items() <= answered.headers.items()
    if not shown.body:
        return
    if answered.headers["content-type"] == "application/json":
        body = json.loads(answered.body)
        if "performance" not in json.loads(shown.body):
            # Every answer about topics and records ends with it; the pages show it once.
            body.pop("performance", None)
        check_same(json.loads(shown.body), body)
    else:
        assert set(shown.body.splitlines()) - set(answered.body.splitlines()) == set()


def run_all(text: str, run: Runner, server: LiveServer) -> None:
    found = examples(text)
    assert found
    for example in found:
        check_example(example, run, server.url)


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("page", [page for page in API_PAGES if page != "authentication"])
def test_the_examples_of_a_page_are_answered_as_shown(run: Runner, page: str, tmp_path: Path) -> None:
    with LiveServer(tmp_path, backup_dir="backups") as server:
        run_all(read(f"docs/api/{page}.md"), run, server)


@pytest.mark.parametrize("run", RUNNERS)
def test_the_examples_with_keys_are_answered_as_shown(run: Runner, tmp_path: Path) -> None:
    text = read("docs/api/authentication.md")
    [keys] = re.findall(r"^TOPICS_API_KEYS='([^']+)' topics serve$", text, re.MULTILINE)
    with LiveServer(tmp_path, api_keys=keys) as server:
        run_all(text, run, server)


def test_every_route_has_an_example() -> None:
    """But the short names of the probes, which answer like the long ones."""
    routes = ROUTES
    shown = set()
    for command, _ in examples(PAGE):
        [path] = [word.removeprefix(BASE).partition("?")[0] for word in command if word.startswith(BASE)]
        method = command[command.index("-X") + 1] if "-X" in command else "POST" if "--json" in command else "GET"
        shown.add(routes.find(method, path)[0].path + " " + method)
    assert {f"{route.path} {route.method}" for route in routes.all} - shown == {
        "/health GET",
        "/healthz GET",
        "/readyz GET",
    }
