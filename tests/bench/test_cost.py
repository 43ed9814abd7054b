from dataclasses import replace

from rich.console import Console

from bench.cost import Cost, measure, report
from bench.cost_operations import OPERATIONS
from bench.install import ROOT


def test_operations_have_names_of_their_own() -> None:
    keys = [operation.key for operation in OPERATIONS]
    assert len(set(keys)) == len(keys)


def test_an_operation_costs_time_and_bytes() -> None:
    chosen = [replace(operation, rounds=3) for operation in OPERATIONS if operation.key in ("append", "diff-tail")]
    found = measure([ROOT], chosen, rounds=2)
    (append,), (read,) = found["append"], found["diff-tail"]
    assert len(append.us) == len(read.us) == 2
    assert min(append.us) > 0 and min(read.us) > 0
    # Records of 200 bytes, and their frame; nothing is written for a read.
    assert 200 < min(append.log_bytes) < 400
    assert max(read.log_bytes) == 0


def test_the_least_of_both_sides_is_reported() -> None:
    append = OPERATIONS[0]
    there, here = Cost([20.0, 40.0], [260.0, 260.0]), Cost([30.0, 10.0], [250.0, 250.0])
    text = report(Console(quiet=True), [append], {append.key: [there, here]}, rounds=2)
    assert f"| {append.title} | 10.0 | 250 | 20.0 | 2.00 | 260 |" in text
