"""The TypeScript client: its suite under Node, Deno and Bun, its README, its package, and its calls in Chromium.

Deno and Bun are used where they are on PATH: `npm install --global deno bun` gets both.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.browser.chromium import open_page
from tests.http.live import LiveServer
from tests.unit.docs.pages import ROOT
from tools import typescript_client

pytestmark = pytest.mark.xdist_group("typescript")

_SUITE_S = 400
# The class WebSocket is global from Node 22 on.
NODE = ["node", "--experimental-websocket", "--no-warnings"]


class Runtime(NamedTuple):
    test: list[str]
    run: list[str]


OTHERS = {
    "deno": Runtime(["test", "--no-check", "--allow-all"], ["run", "--allow-net", "--allow-env", "--allow-read"]),
    "bun": Runtime(["test", "--timeout", "120000"], []),
}
_SCENARIO = """async (key) => {
  const { TopicsClient, hasCode } = await import('/client/index.js');
  const client = new TopicsClient({ apiKey: key });
  await client.appendMany('orders', [{ data: 1 }, { data: 2, tag: 'second' }]);
  const found = [];
  for await (const item of client.follow('orders', { wait_ms: 0 })) found.push(item.record.data);
  const watched = [];
  for await (const item of client.watch('orders')) {
    if (item.type === 'record') watched.push(item.record.data);
    if (item.type === 'caught-up') break;
  }
  const socket = client.socket();
  const published = await socket.publish('orders', [{ data: 3 }]);
  await socket.subscribe({ orders: 2 });
  const { value } = await socket[Symbol.asyncIterator]().next();
  socket.close();
  const events = await new Promise(async (resolve) => {
    const source = new EventSource(await client.watchUrl({ orders: 2 }));
    source.addEventListener('record', (event) => { source.close(); resolve(JSON.parse(event.data).records[0].data); });
  });
  const consumed = [];
  for await (const item of client.consumer('orders', 'browser', { wait_ms: 0 })) consumed.push(item.record.data);
  const committed = (await client.getConsumer('orders', 'browser')).seq;
  await client.putTopic('jobs', { type: 'queue' });
  await client.append('jobs', 'resize');
  const worked = await new Promise((resolve) => {
    const worker = client.worker('jobs', (job) => { worker.stop(); resolve(job.data); });
    worker.run();
  });
  const { state } = await client.transaction('import', 1, (step) => step.append('ledger', 5));
  const refused = await client.diff('missing').then(() => false, (error) => hasCode(error, 'topic_not_found'));
  client.close();
  return { found, watched, published: published.first_seq, followed: value.record.data, events, refused,
    consumed, committed, worked, state };
}"""


@pytest.fixture(scope="module")
def package() -> Path:
    try:
        return typescript_client.build(with_tests=True)
    except typescript_client.NodeMissing as error:
        pytest.skip(str(error))


def installed(runtime: str) -> str:
    found = shutil.which(runtime)
    if found is None:
        pytest.skip(f"{runtime} is not installed")
    return found


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path) as server:
        yield server


def compiled_tests(package: Path) -> list[str]:
    tests = sorted(str(path) for path in (package / "build" / "test").glob("*.test.js"))
    assert len(tests) >= 5
    return tests


def test_client_suite_passes_under_node(package: Path) -> None:
    done = subprocess.run(
        [*NODE, "--test", "--test-timeout", "120000", *compiled_tests(package)],
        cwd=package, env={**os.environ, "TOPICS_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=_SUITE_S, check=False,
    )  # fmt: skip
    failed = re.findall(r"^\s*not ok .*", done.stdout, re.MULTILINE)
    assert done.returncode == 0, "\n".join([*failed, done.stdout[-8000:], done.stderr[-2000:]])
    passed = re.search(r"^# pass (\d+)", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) >= 65


@pytest.mark.parametrize("runtime", OTHERS)
def test_client_suite_passes_under_other_runtimes(package: Path, runtime: str) -> None:
    program = installed(runtime)
    done = subprocess.run(
        [program, *OTHERS[runtime].test, *compiled_tests(package)],
        cwd=package / "build", env={**os.environ, "TOPICS_PYTHON": sys.executable, "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=_SUITE_S, check=False,
    )  # fmt: skip
    shown = f"{done.stdout}{done.stderr}"
    assert done.returncode == 0, shown[-8000:]
    assert sum(map(int, re.findall(r"(\d+) pass", shown))) >= 65


@pytest.mark.parametrize("runtime", ["node", *OTHERS])
def test_readme_examples_run_as_written(package: Path, live: LiveServer, tmp_path: Path, runtime: str) -> None:
    command = NODE if runtime == "node" else [installed(runtime), *OTHERS[runtime].run]
    examples = re.findall(r"```js\n(.*?)```", (package / "README.md").read_text(), re.DOTALL)
    assert len(examples) >= 5
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "topics-client").symlink_to(package)
    for number, example in enumerate(examples):
        script = tmp_path / f"example{number}.mjs"
        script.write_text(example.replace("http://127.0.0.1:4000", live.url))
        done = subprocess.run(
            [*command, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{example}\n{done.stdout}{done.stderr}"
        expected = re.findall(r"^\s*//> (.*)$", example, re.MULTILINE)
        assert done.stdout.splitlines() == expected, example


def test_missing_node_is_reported_before_the_tests(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.typescript_client", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tests of the TypeScript client are skipped: node and npm are not installed")
    assert done.stdout.count("\n") == 1


def test_package_installs_in_an_empty_folder_without_dependencies(package: Path, tmp_path: Path) -> None:
    (packed,) = json.loads(typescript_client.run("npm", "pack", "--json", "--pack-destination", str(tmp_path)))
    names = {file["path"] for file in packed["files"]}
    assert {"package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts"} <= names
    assert not [name for name in names if name.startswith(("src/", "test/", "scripts/", "node_modules/"))]
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    install = ["npm", "install", "--offline", "--no-audit", "--no-fund", "--no-package-lock", packed["filename"]]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert [path.name for path in (tmp_path / "node_modules").iterdir() if path.is_dir()] == ["topics-client"]
    script = "import('topics-client').then((all) => console.log(typeof all.TopicsClient))"
    done = subprocess.run(["node", "-e", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "function"


def test_client_works_in_chromium(package: Path, tmp_path: Path) -> None:
    with LiveServer(tmp_path, api_keys="secret") as live, open_page(live.url, "<!doctype html>") as page:
        page.route(
            "**/client/*.js",
            lambda route: route.fulfill(
                path=package / "dist" / route.request.url.rpartition("/")[2], content_type="text/javascript"
            ),
        )
        assert page.evaluate(_SCENARIO, "secret") == {
            "found": [1, 2], "watched": [1, 2], "published": 3, "followed": 3, "events": 3, "refused": True,
            "consumed": [1, 2, 3], "committed": 3, "worked": "resize", "state": "committed",
        }  # fmt: skip
