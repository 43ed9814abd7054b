"""Reading the server's metrics: a number by name, or a number for each topic."""

from collections.abc import Mapping
from typing import Any


def number(metrics: Mapping[str, Any], name: str) -> float:
    """A metric without labels; 0 where the server does not have it."""
    found = metrics.get(name, 0)
    return float(found) if isinstance(found, int | float) else 0.0


def by_topic(metrics: Mapping[str, Any], name: str) -> dict[str, float]:
    """A metric that each topic has."""
    found = metrics.get(name, [])
    if not isinstance(found, list):
        return {}
    return {sample["labels"]["topic"]: float(sample["value"]) for sample in found}
