"""Which streams are the server's own, told from those that got such a name before it was reserved."""

from topics.engine.streams.state import stream_of
from topics.engine.topic import Topic


def own_title(name: str) -> str:
    """What the schema of a system stream is called, which tells it from a stream of somebody else."""
    return f"topics:{name}"


def is_own_stream(topic: Topic) -> bool:
    """Whether a topic with the name of a system stream is one."""
    state = stream_of(topic)
    versions = () if state is None or state.description is None else state.description.contract.registry.versions
    return bool(versions) and state is not None and own_title(topic.name).encode() in versions[0].schema
