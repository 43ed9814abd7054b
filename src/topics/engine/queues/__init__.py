"""Queues: lease-based delivery of jobs on top of a topic's log. `Queues` is what the rest of the world uses."""

from topics.engine.queues.messages import (
    AckResult,
    ClaimedJob,
    ClaimRequest,
    ClaimResult,
    ExtendRequest,
    ExtendResult,
    HeldRequest,
    LeaseInfo,
    LeasePage,
    NackRequest,
    NackResult,
    QueueCounters,
    RedriveRequest,
    RedriveResult,
    WorkerRequest,
)
from topics.engine.queues.queues import Queues
from topics.engine.queues.state import Worker

__all__ = [
    "AckResult",
    "ClaimRequest",
    "ClaimResult",
    "ClaimedJob",
    "ExtendRequest",
    "ExtendResult",
    "HeldRequest",
    "LeaseInfo",
    "LeasePage",
    "NackRequest",
    "NackResult",
    "QueueCounters",
    "Queues",
    "RedriveRequest",
    "RedriveResult",
    "Worker",
    "WorkerRequest",
]
