"""Dividing what there is among those who want it: evenly, and in proportion to how much each asked for. Pure."""

from collections.abc import Sequence


def shares(available: int, wanted: Sequence[int]) -> list[int]:
    """How many each gets. Nobody gets more than asked for, and nothing is left while anybody wants more.

    Where there is too little, each gets the part that corresponds to what it asked for. What is left over by rounding
    goes to those who lost most by it, one each; of equals, to those who came first.
    """
    total = sum(wanted)
    if available >= total:
        return list(wanted)
    if not available:
        return [0] * len(wanted)
    given = [available * wish // total for wish in wanted]
    left = available - sum(given)
    by_remainder = sorted(range(len(wanted)), key=lambda place: -(available * wanted[place] % total))
    for place in by_remainder[:left]:
        given[place] += 1
    return given


def deal(jobs: Sequence[int], given: Sequence[int]) -> list[list[int]]:
    """Who gets which: one each in turn, so that all begin with the oldest. `given` adds up to the number of jobs."""
    hands: list[list[int]] = [[] for _ in given]
    waiting = [(hand, share) for hand, share in zip(hands, given, strict=True) if share]
    place = 0
    while waiting:
        for hand, _ in waiting:
            hand.append(jobs[place])
            place += 1
        waiting = [(hand, share) for hand, share in waiting if len(hand) < share]
    return hands
