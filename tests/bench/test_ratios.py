import random

from bench.ratios import Ratio


def test_the_ratio_is_that_of_the_middle_turn() -> None:
    ours, theirs = [10.0, 30.0, 9.0], [10.0, 10.0, 10.0]
    assert str(Ratio.of(ours, theirs)) == "1.00 (0.90 to 3.00)"


def test_a_machine_that_changes_its_mind_changes_no_ratio() -> None:
    seed = 3
    rng = random.Random(seed)
    speeds = [rng.uniform(0.3, 1.0) for _ in range(101)]
    found = Ratio.of([1.1 * speed for speed in speeds], speeds)
    assert f"{found.middle:.6f} {found.low:.6f} {found.high:.6f}" == "1.100000 1.100000 1.100000"


def test_more_turns_make_the_interval_narrower_and_it_holds_the_truth() -> None:
    rng = random.Random(5)

    def measured(turns: int) -> Ratio:
        return Ratio.of([rng.gauss(95, 10) for _ in range(turns)], [rng.gauss(100, 10) for _ in range(turns)])

    few, many = measured(20), measured(2000)
    assert many.high - many.low < few.high - few.low
    assert many.low < 0.95 < many.high
