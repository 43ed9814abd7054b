"""Fixtures and settings of every test.

The hypothesis profile is chosen by HYPOTHESIS_PROFILE: `fixed` tries the same examples each time, `random`
others and more of them, `thorough` many. A failing example is printed with the blob that
replays it, and every failure of a random test with the command that repeats it.
"""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.seeds import SEED, run_again

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")

# No deadline: a sync of the disk takes as long as the machine likes, which has no information about the code. No
# database either: the findings of one run must not change the next.
settings.register_profile("random", deadline=None, print_blob=True, database=None)
settings.register_profile("fixed", settings.get_profile("random"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("random"), max_examples=2_000)
settings.load_profile(PROFILE)

if settings().derandomize:
    # Hypothesis also tries the constants of all loaded modules of the project, and the set of them depends on earlier
    # tests of the same process.
    nothing = Constants()
    providers._get_local_constants = lambda: nothing

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background processes with SIGINT ignored, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"TOPICS_TEST_SEED={SEED} HYPOTHESIS_PROFILE={PROFILE}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_random(item):
            item.add_marker(pytest.mark.random)


def is_random(item: pytest.Item) -> bool:
    """Whether a seed determines the test: hypothesis's, or the fixture's."""
    if not isinstance(item, pytest.Function):
        return False
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return getattr(item.obj, "is_hypothesis_test", False) or ("seed" in item.fixturenames and "seed" not in given)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.get_closest_marker("random"):
        report.sections.append(("The same again", run_again(item.nodeid)))
    return report


@pytest.fixture
def seed() -> int:
    """The seed of a test's own random generator."""
    print(f"TOPICS_TEST_SEED={SEED}")
    return SEED
