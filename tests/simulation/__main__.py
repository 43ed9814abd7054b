"""`python -m tests.simulation FIRST COUNT`: simulates servers, one a seed, and states which seeds broke a promise."""

import logging
import sys
import time

from tests.simulation.world import World


def main() -> int:
    logging.disable(logging.CRITICAL)
    first, number = int(sys.argv[1]), int(sys.argv[2])
    broken, begun = 0, time.monotonic()
    for seed in range(first, first + number):
        world = World(seed, thorough=True)
        try:
            world.run(lives=8)
        except Exception as error:
            broken += 1
            print(f"seed {seed}, life {world.lives}: {error}", flush=True)
            print("\n".join(f"    {line}" for line in world.trace[-8:]), flush=True)
    print(f"{number - broken} of {number} seeds from {first} kept every promise, in {time.monotonic() - begun:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
