"""The commands of `make serve` on a fresh machine, read from a dry run of make and from the install script."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.docs.pages import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")

SERVING = ["requirements/build.txt", "requirements/runtime.txt", "requirements/pages.txt"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As far as make looks at it; without a .venv."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("requirements", "clients/python"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    return tmp_path


def dry_run(checkout: Path, target: str) -> str:
    """Returns the commands that make would run. The variables of the make that runs these tests are removed, because
    they change the output of this one."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-n", "--no-print-directory", target]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def planned(checkout: Path, target: str) -> list[str]:
    """The requirements that making a target would install, in order."""
    words = [
        word
        for line in dry_run(checkout, target).splitlines()
        if "requirements/install" in line
        for word in line.split()
    ]
    return [word for word in words if word.startswith("requirements/") and word.endswith(".txt")]


def test_serving_installs_what_serving_needs(checkout: Path) -> None:
    assert planned(checkout, "serve") == SERVING
    assert planned(checkout, "setup-serve") == SERVING


@pytest.mark.parametrize("target", ["test", "check", "bench", "slow"])
def test_whatever_needs_more_installs_it_when_it_is_first_asked_for(checkout: Path, target: str) -> None:
    assert planned(checkout, "setup-spark") == [*SERVING, "requirements/spark.txt", "requirements/java.txt"]
    more = ["requirements/spark.txt", "requirements/java.txt", "requirements/dev.txt", "requirements/s3.txt"]
    more.append("requirements/readers.txt")
    if target == "slow":
        more += ["requirements/audit.txt", "requirements/docs.txt"]
    assert planned(checkout, target) == [*SERVING, *more]


def test_installed_packages_are_kept_until_a_pin_changes(checkout: Path) -> None:
    stamp = dry_run(checkout, "setup-serve").rpartition("touch ")[2].strip()
    (checkout / ".venv").mkdir()
    (checkout / stamp).touch()
    assert planned(checkout, "serve") == []
    assert planned(checkout, "setup-spark") == ["requirements/spark.txt", "requirements/java.txt"]
    with (checkout / "requirements" / "dev.txt").open("a") as pins:
        pins.write("another==1.0\n")
    assert planned(checkout, "serve") == []
    with (checkout / "requirements" / "runtime.txt").open("a") as pins:
        pins.write("another==1.0\n")
    assert planned(checkout, "serve") == SERVING


def install(folder: Path, pip: str) -> subprocess.CompletedProcess[str]:
    """The script, with something in pip's place."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{pip}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return subprocess.run(
        [str(ROOT / "requirements" / "install"), "what is needed", "-r", "x"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_an_installation_shows_packages_sizes_and_times(tmp_path: Path) -> None:
    said = (
        "Collecting a==1.0 (from -r x (line 1))\n"
        "  Downloading a-1.0-py3-none-any.whl.metadata (2.0 kB)\n"
        "  Downloading mirror/a-1.0-py3-none-any.whl (1.5 MB)\n"
        "  Using cached b-2.0-py3-none-any.whl (20 kB)\n"
        "  Using cached c-3.0-py2.py3-none-any.whl\n"
        "  Using cached c-3.0-py2.py3-none-any.whl.metadata\n"
        "Installing collected packages: b, a\n"
        "Successfully installed a-1.0 b-2.0\n"
    )
    done = install(tmp_path, f"cat <<'END'\n{said}END")
    first, *middle, last = done.stdout.splitlines()
    assert first == "installing what is needed"
    assert middle == [
        "  1.5 MB       a-1.0-py3-none-any.whl",
        "  20 kB        b-2.0-py3-none-any.whl",
        "  cached       c-3.0-py2.py3-none-any.whl",
        "  unpacking 2 packages",
    ]
    assert last.startswith("installed what is needed in ") and last.endswith(" MB")
    assert done.returncode == 0


def test_pins_are_installed_by_their_hashes_only(tmp_path: Path) -> None:
    said = tmp_path / "said"
    assert install(tmp_path, f'echo "$@" > {said}').returncode == 0
    assert said.read_text().split()[-3:] == ["--require-hashes", "-r", "x"]
    deployed = [line for line in (ROOT / "deploy" / "install").read_text().splitlines() if "pip install" in line]
    assert len([line for line in deployed if " -r " in line]) == 3
    assert all("--require-hashes" in line for line in deployed if " -r " in line)


def test_a_package_with_another_hash_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        packed.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("tiny-1.0.dist-info/RECORD", "")
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for pin, expected in (
        (f"tiny==1.0 --hash=sha256:{right}", ""),
        (f"tiny==1.0 --hash=sha256:{'0' * 64}", "DO NOT MATCH THE HASHES"),
        ("tiny==1.0", "Hashes are required"),
    ):
        (tmp_path / "pins.txt").write_text(pin + "\n")
        done = subprocess.run(
            [
                str(ROOT / "requirements" / "install"), "tiny", "--no-index", "--find-links", str(tmp_path),
                "--target", str(tmp_path / "site"), "--upgrade", "-r", str(tmp_path / "pins.txt"),
            ],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (expected in done.stderr) and (done.returncode == 0) is (expected == ""), done.stderr


def test_an_installation_that_fails_reports_it(tmp_path: Path) -> None:
    done = install(tmp_path, "echo 'no such package' >&2; exit 1")
    assert done.returncode == 1
    assert "no such package" in done.stderr
    assert "installed what is needed" not in done.stdout


def test_installation_shows_each_package_as_it_is_downloaded(tmp_path: Path) -> None:
    """Pip waits for the test after its first line, which must have come through by then."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    os.mkfifo(tmp_path / "go on")
    python.write_text("#!/bin/sh\necho '  Downloading a-1.0.whl (1.5 MB)'\ncat 'go on'\n")
    python.chmod(0o755)
    command = [str(ROOT / "requirements" / "install"), "what is needed"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as installing:
        assert installing.stdout is not None
        assert installing.stdout.readline() == "installing what is needed\n"
        assert installing.stdout.readline() == "  1.5 MB       a-1.0.whl\n"
        (tmp_path / "go on").write_text("")
        assert installing.stdout.readline().startswith("installed what is needed")


def fake_python(folder: Path, version: str) -> str:
    """A Python of a version, which makes an environment that installs nothing."""
    python = folder / f"python{version}"
    python.write_text(
        f"""#!/bin/sh
        case "$1 $2" in
            "-c "*) echo {version};;
            "-m venv") mkdir -p .venv/bin; echo "version = {version}.1" > .venv/pyvenv.cfg; cp "$0" .venv/bin/python;;
        esac
        """
    )
    python.chmod(0o755)
    return str(python)


def install_with(folder: Path, python: str, path: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": python, "PATH": f"{path}:/usr/bin:/bin"}
    command = [str(ROOT / "requirements" / "install"), "what is needed"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_old_python_is_refused_before_an_environment_is_made(tmp_path: Path) -> None:
    newer = Path(fake_python(tmp_path, "3.16")).name
    done = install_with(tmp_path, fake_python(tmp_path, "3.9"), tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "topics needs Python 3.11 or newer" in done.stderr
    assert f"is 3.9: run make again with PYTHON={newer}" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_environment_of_another_python_is_remade(tmp_path: Path) -> None:
    assert install_with(tmp_path, fake_python(tmp_path, "3.11"), tmp_path).returncode == 0
    (tmp_path / ".venv" / "installed").touch()
    assert install_with(tmp_path, fake_python(tmp_path, "3.11"), tmp_path).returncode == 0
    assert (tmp_path / ".venv" / "installed").exists()
    done = install_with(tmp_path, fake_python(tmp_path, "3.12"), tmp_path)
    assert "remaking .venv: it is of Python 3.11" in done.stdout
    assert not (tmp_path / ".venv" / "installed").exists()
    assert "3.12" in (tmp_path / ".venv" / "pyvenv.cfg").read_text()


def get_browser(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """The script that gets a browser, on a machine that has these programs and no others."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("bash", "mktemp", "tail", "rm", "timeout", "cat"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    for name, script in programs.items():
        path = tools / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    command = [str(tools / "bash"), str(ROOT / "requirements" / "browser")]
    return subprocess.run(
        command, env={"PATH": str(tools)}, capture_output=True, text=True, check=True, timeout=60, cwd=folder
    )


def test_a_browser_that_is_there_is_left_alone(tmp_path: Path) -> None:
    assert get_browser(tmp_path, chromium="exit 1", apt_get="echo called >&2; exit 1").stdout == ""


def test_root_gets_a_browser_from_debian(tmp_path: Path) -> None:
    done = get_browser(tmp_path, id="echo 0", apt_get='echo "$@" >> asked')
    assert done.stdout == "installing Chromium\n"
    assert (tmp_path / "asked").read_text() == "update\ninstall --yes --no-install-recommends chromium\n"


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"id": "echo 1000", "apt_get": "echo called >&2; exit 1"}, "`sudo apt-get install chromium` gets one"),
        ({"id": "echo 0"}, "Put chromium or google-chrome on PATH"),
        ({"id": "echo 0", "apt_get": "echo no network; exit 1"}, "no network"),
    ],
    ids=["nobody", "no apt", "no network"],
)
def test_where_no_browser_can_be_had_the_tests_go_on_without(
    tmp_path: Path, programs: dict[str, str], said: str
) -> None:
    done = get_browser(tmp_path, **programs)
    assert "the tests in tests/browser are skipped" in done.stdout
    assert said in done.stdout
