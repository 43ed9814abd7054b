"""`make demo` as its process, with the pipeline on Spark: rounds are made, and the console reports them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import keep, visit
from tests.browser.test_console_access import findings
from tests.http.proxies import free_port
from tests.unit.docs.pages import ROOT

_PATIENCE_S = 300.0


def pipeline(url: str) -> dict[str, Any]:
    """The status of the pipeline, after its first round."""
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up:
        try:
            now: dict[str, Any] = httpx.get(f"{url}/v0/pipeline").json()
            if now["last_run"] is not None and now["records"] > 0:
                return now
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError("the pipeline has made no round")


@pytest.mark.slow
@pytest.mark.parametrize("spark", [True, False], ids=["with Spark", "without"])
def test_the_demo_runs_with_and_without_spark(browser: Browser, tmp_path: Path, spark: bool) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    hidden = "" if spark else "import sys; sys.modules['pyspark'] = None; "
    code = f"{hidden}import runpy; runpy.run_module('tools.demo', run_name='__main__')"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    with subprocess.Popen(
        [sys.executable, "-c", code, "--port", str(port), "--speed", "25"],
        cwd=ROOT, env={**env, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    ) as demo:  # fmt: skip
        try:
            assert demo.stdout is not None
            said = ""
            while "Ctrl-C" not in said:
                line = demo.stdout.readline()
                assert line, f"the demo ended: {said}"
                said += line
            assert f"{url}/console" in said
            if spark:
                assert pipeline(url)["state"] in ("running", "idle", "waiting")
            for theme in ("light", "dark"):
                with visit(browser, f"{url}/console#/pipeline", color_scheme=theme, bypass_csp=True) as page:
                    if spark:
                        expect(page.get_by_text("Last round")).to_be_visible()
                        expect(page.get_by_text("No round yet.")).to_have_count(0)
                    else:
                        expect(page.get_by_text("The pipeline is off")).to_be_visible()
                    assert findings(page) == []
                    keep(page, f"pipeline-{theme}" if spark else f"pipeline-off-{theme}")
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(_PATIENCE_S)
    assert demo.returncode == 0
    assert list(tmp_path.glob("topics-demo-*")) == []
