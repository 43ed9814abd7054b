"""The published conformance suite of Durable Streams, all of it, against the project's server."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.conformance.node import require_node
from tests.http.live import LiveServer

TESTS = 338
_PATIENCE_S = 600
_CONFIG = """
import { defineConfig } from "vitest/config";
export default defineConfig({
  root: import.meta.dirname,
  test: { include: ["suite.mjs"], testTimeout: 30000, hookTimeout: 30000, watch: false },
});
"""


def test_every_test_of_the_public_suite_passes(tmp_path: Path) -> None:
    home = require_node()
    (home / "suite.mjs").write_text((Path(__file__).parent / "suite.mjs").read_text())
    (home / "suite.config.mjs").write_text(_CONFIG)
    report = tmp_path / "report.json"
    npx = shutil.which("node")
    assert npx is not None
    with LiveServer(tmp_path, streams_long_poll_ms="500") as server:
        done = subprocess.run(
            [
                npx, str(home / "node_modules/vitest/vitest.mjs"), "run", "--config", str(home / "suite.config.mjs"),
                "--reporter=json", f"--outputFile={report}",
            ],
            cwd=home, env={**os.environ, "STREAMS_URL": server.url}, capture_output=True, text=True,
            timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    assert report.exists(), f"the suite did not run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    results = [test for file in json.loads(report.read_text())["testResults"] for test in file["assertionResults"]]
    failed = [f"{test['fullName']}: {test['failureMessages'][:1]}" for test in results if test["status"] == "failed"]
    assert not failed, "\n".join(failed)
    assert sum(test["status"] == "passed" for test in results) == TESTS
