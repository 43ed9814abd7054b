"""The engine: topics and everything that changes or reads them. Decide, log, apply."""

from topics.core.batch import Batch
from topics.engine.core import EngineOptions
from topics.engine.engine import Engine
from topics.engine.read import ReadRequest, ReadResult
from topics.engine.results import AppendResult, DeleteResult, DropResult, PutResult
from topics.engine.stats import EngineStats
from topics.engine.topic_info import TopicInfo
from topics.engine.write.coalescing import Singles, Unread

__all__ = [
    "AppendResult",
    "Batch",
    "DeleteResult",
    "DropResult",
    "Engine",
    "EngineOptions",
    "EngineStats",
    "PutResult",
    "ReadRequest",
    "ReadResult",
    "Singles",
    "TopicInfo",
    "Unread",
]
