"""The files of deploy/: they parse, name metrics and settings that exist, and install a server that runs."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.http.live import LiveServer
from tests.unit.docs.pages import ROOT
from tools.site_reference import every_metric
from topics.model.settings import SETTINGS

DEPLOY = ROOT / "deploy"
VARIABLES = {f"TOPICS_{setting.name.upper()}" for setting in SETTINGS} | {"TOPICS_SCRAPE_KEY"}
# Functions, labels and words of Prometheus' own language.
_METRIC = re.compile(r"\b((?:topics|process)_[a-z_]+)\b")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def exposed() -> set[str]:
    """Every name that a query may ask for."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", every_metric().text().decode(), re.MULTILINE))
    parts = {
        f"{name}_{part}" for name, kind in kinds.items() if kind == "histogram" for part in ("bucket", "sum", "count")
    }
    return {*kinds, *parts}


def queries() -> dict[str, str]:
    """Every query of the dashboard and the alerts, by where it stands."""
    [rules] = documents("prometheus/alerts.yml")
    found = {f"alert {rule['alert']}": rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    board = json.loads((DEPLOY / "grafana/dashboards/topics.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    found["variable"] = board["templating"]["list"][0]["query"]["query"]
    return found


def test_every_metric_that_is_asked_for_exists() -> None:
    there = exposed()
    assert len(queries()) > 40
    missing = {where: set(_METRIC.findall(query)) - there for where, query in queries().items()}
    assert {where: names for where, names in missing.items() if names} == {}
    assert all(_METRIC.search(query) for query in queries().values())


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = json.loads((DEPLOY / "grafana/dashboards/topics.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & covered, panel["title"]
        covered |= cells


def test_every_alert_states_what_is_the_matter() -> None:
    [rules] = documents("prometheus/alerts.yml")
    for rule in rules["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["for"]


def test_the_compose_file_holds_together() -> None:
    [compose] = documents("compose.yaml")
    server = compose["services"]["topics"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "nothing is open to others by default"
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
    [scrape] = documents("prometheus/prometheus.yml")
    [job] = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["topics:4000"]}]
    assert job["authorization"]["credentials_file"] == compose["services"]["prometheus"]["configs"][0]["target"]
    assert all((DEPLOY / "prometheus" / name).exists() for name in scrape["rule_files"])


def test_the_stateful_set_holds_together() -> None:
    service, stateful = documents("kubernetes/topics.yaml")
    pod = stateful["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert stateful["spec"]["replicas"] == 1
    assert service["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    named = {volume["name"] for volume in pod["volumes"]}
    named |= {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == named
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert pod["securityContext"]["runAsUser"] == int(re.findall(r"--uid (\d+)", dockerfile())[0])


def test_the_servers_of_the_failover_compose_file_share_a_place_and_nothing_else() -> None:
    [compose] = documents("compose.failover.yaml")
    services = compose["services"]
    servers = {name: service for name, service in services.items() if name.startswith("topics-")}
    places = [service["environment"].pop("TOPICS_ADVERTISE_URL") for service in servers.values()]
    assert places == [f"http://{name}:4000" for name in servers]
    first, second = servers.values()
    assert first["environment"] == second["environment"]
    assert not {*first["volumes"]} & {*second["volumes"]}
    for service in servers.values():
        [volume] = service["volumes"]
        assert service["environment"]["TOPICS_DATA_DIR"].startswith(volume.partition(":")[2] + "/")
        assert service["restart"] == "unless-stopped"
    balancer = (DEPLOY / services["balancer"]["volumes"][0].partition(":")[0]).read_text()
    # One backend for the primary, and one for standbys.
    assert re.findall(r"^    server (\S+) (\S+):4000$", balancer, re.MULTILINE) == 2 * [
        (name, name) for name in servers
    ]
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))


def test_the_stateful_set_with_a_standby_holds_together() -> None:
    service, headless, stateful = documents("kubernetes/topics-failover.yaml")
    [alone_service, alone] = documents("kubernetes/topics.yaml")
    spec, pod = stateful["spec"], stateful["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert spec["podManagementPolicy"] == "Parallel", "a standby is never ready"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["publishNotReadyAddresses"] and service["spec"].get("clusterIP") != "None"
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["TOPICS_ADVERTISE_URL"] == f"http://$(POD_NAME).{headless['metadata']['name']}:4000"
    assert container["readinessProbe"]["httpGet"]["path"].startswith("/readyz")
    # Everything else is as in the manifest of one server.
    assert pod["securityContext"] == alone["spec"]["template"]["spec"]["securityContext"]
    assert pod["volumes"] == alone["spec"]["template"]["spec"]["volumes"]
    assert alone_service["spec"]["selector"] == service["spec"]["selector"]


def test_the_unit_parses_and_starts_what_is_installed(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd/topics.service")
    assert unit["Service"]["ExecStart"] == "/opt/topics/bin/topics serve"
    assert unit["Service"]["User"] == "topics"
    tool = shutil.which("systemd-analyze")
    if tool is not None:
        copy = tmp_path / "topics.service"
        # The user and the program of a machine that has installed it.
        text = (DEPLOY / "systemd/topics.service").read_text()
        copy.write_text(text.replace("/opt/topics/bin/topics", sys.executable).replace("User=topics", "User=root"))
        done = subprocess.run([tool, "verify", str(copy)], capture_output=True, text=True, check=False, timeout=60)
        assert "topics.service" not in done.stderr


@pytest.mark.parametrize("name", ["proxy/nginx.conf", "proxy/Caddyfile"])
def test_braces_of_the_proxies_are_closed(name: str) -> None:
    text = re.sub(r"#.*", "", (DEPLOY / name).read_text())
    assert text.count("{") == text.count("}") > 1
    assert "127.0.0.1:4000" in text


@pytest.mark.parametrize(
    "path", sorted(path for path in DEPLOY.rglob("*") if path.is_file()), ids=lambda path: path.name
)
def test_every_setting_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"\bTOPICS_[A-Z_]+\b", path.read_text()))
    assert named - VARIABLES == set()


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text()


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, each on one line."""
    joined = re.sub(r"\\\n\s*", "", "\n".join(line for line in dockerfile().splitlines() if not line.startswith("#")))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def test_the_image_is_small_and_nobodys_root() -> None:
    words = [word for word, _ in steps()]
    assert words.count("FROM") == 2, "what only building needs stays behind"
    final = steps()[len(words) - 1 - words[::-1].index("FROM") :]
    assert ("USER", "topics") in final
    assert ("VOLUME", "/data") in final
    assert ("EXPOSE", "4000") in final
    assert any(word == "HEALTHCHECK" for word, _ in final)
    assert json.loads(dict(final)["CMD"]) == ["topics", "serve"]


def copied(folder: Path) -> None:
    """Returns the paths that the first stage copies, and nothing else."""
    for word, rest in steps():
        if word == "FROM" and "AS build" not in rest:
            return
        if word == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                place = folder / target if len(sources) == 1 else folder / target / Path(source).name
                place.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / source).is_dir():
                    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
                    shutil.copytree(ROOT / source, place, ignore=ignore)
                else:
                    shutil.copy(ROOT / source, place)


@pytest.mark.slow
def test_the_steps_of_the_image_make_a_server_that_is_healthy(tmp_path: Path) -> None:
    """Without a container: the same files, the same commands, another folder."""
    build, installed = tmp_path / "build", tmp_path / "installed"
    copied(build)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TOPICS_", "VIRTUAL"))
    }
    environment["PYTHON"] = sys.executable
    for word, rest in steps()[: [word for word, _ in steps()].index("FROM", 1)]:
        if word == "RUN":
            command = rest.replace("/opt/topics", str(installed))
            subprocess.run(["sh", "-c", command], cwd=build, env=environment, check=True, timeout=900)
    shutil.rmtree(build)
    packages = {path.name for path in next((installed / "lib").glob("python*")).joinpath("site-packages").iterdir()}
    assert "topics" in packages
    assert not any(name.startswith(("setuptools", "pytest", "pyspark")) for name in packages)
    check = json.loads(re.findall(r"CMD (\[\"python\".*\])$", dockerfile(), re.MULTILINE)[0])
    python = str(installed / "bin" / "python")
    with LiveServer(
        tmp_path, program=("-c", f"import os; os.execv({python!r}, [{python!r}, '-m', 'topics', 'serve'])")
    ) as live:
        port = {"TOPICS_PORT": live.url.rpartition(":")[2]}
        for _ in range(200):
            done = subprocess.run(
                [python, *check[1:]], env={**environment, **port}, capture_output=True, check=False, timeout=60
            )
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr
