"""The machine stops, or fails, at every call: a job is in one place, its promises hold, none is lost.

Each test stops one life of a queue after every one of its file-system calls, and lets every stop end in every way. In
the start that follows each job is looked for everywhere; then it is started twice more, and everything is claimed.
"""

from itertools import islice

import pytest

from tests.crash import queue_scenarios
from tests.crash.queue_sweeps import sweep_faults, sweep_stops
from topics.model.topic_config import Durability
from topics.testing import Fault

LONG = pytest.mark.slow

SHOWN = 8
SCENARIOS = [
    queue_scenarios.working,
    queue_scenarios.working_in_groups,
    queue_scenarios.acknowledging_in_groups,
    queue_scenarios.delaying,
    queue_scenarios.prioritizing,
    queue_scenarios.limiting,
    queue_scenarios.failing,
    queue_scenarios.touching,
    queue_scenarios.burying,
    queue_scenarios.redriving,
]

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
each_number_of_shards = pytest.mark.parametrize("shards", [1, 2])
durable_or_not = pytest.mark.parametrize("leases_durable", [True, False], ids=["durable leases", "plain leases"])
each_class = pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK], ids=["fsync", "disk"])


@each_class
@durable_or_not
@each_number_of_shards
@each_scenario
def test_queue_recovers_after_a_stop_at_every_call(
    scenario: queue_scenarios.Scenario, shards: int, leases_durable: bool, durability: Durability
) -> None:
    found = sweep_stops(scenario, shards, leases_durable=leases_durable, durability=durability)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)


@durable_or_not
@each_number_of_shards
@each_scenario
def test_every_call_may_fail(scenario: queue_scenarios.Scenario, shards: int, leases_durable: bool) -> None:
    found = sweep_faults(scenario, shards, leases_durable=leases_durable)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)


# A job that cannot be buried for want of something is tried again a second later. Only the process knows of that
# second, and the model of these sweeps would take it for a promise. `test_dead_letters_on_full_disk` has them.
SHORT_OF = [
    pytest.param(scenario, fault, id=f"{scenario.__name__} {fault.name}")
    for scenario in SCENARIOS
    for fault in (Fault.ENOSPC, Fault.EMFILE)
    if scenario
    not in (queue_scenarios.failing, queue_scenarios.touching, queue_scenarios.burying, queue_scenarios.redriving)
]


@pytest.mark.parametrize(("scenario", "fault"), SHORT_OF)
def test_every_call_may_meet_a_shortage(scenario: queue_scenarios.Scenario, fault: Fault) -> None:
    found = sweep_faults(scenario, 2, fault, step=3)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)


@LONG
@durable_or_not
@each_number_of_shards
@pytest.mark.parametrize(("scenario", "fault"), SHORT_OF)
def test_every_single_call_may_meet_a_shortage(
    scenario: queue_scenarios.Scenario, shards: int, leases_durable: bool, fault: Fault
) -> None:
    found = sweep_faults(scenario, shards, fault, leases_durable=leases_durable)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)


@pytest.mark.parametrize(
    ("queue_class", "dead_class"),
    [
        (Durability.FSYNC, Durability.DISK),
        (Durability.DISK, Durability.FSYNC),
        (Durability.FSYNC, Durability.MEMORY),
    ],
    ids=lambda durability: durability.value,
)
@each_number_of_shards
@pytest.mark.parametrize("scenario", [queue_scenarios.burying, queue_scenarios.redriving], ids=lambda s: s.__name__)
def test_a_move_between_classes_loses_nothing(
    scenario: queue_scenarios.Scenario, shards: int, queue_class: Durability, dead_class: Durability
) -> None:
    found = sweep_stops(scenario, shards, durability=queue_class, dead_class=dead_class)
    assert not (texts := list(islice(found, SHOWN))), "\n".join(texts)
