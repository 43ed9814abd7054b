"""Who is told of what: lists of the engine's core that features and upkeep put themselves into."""

from collections.abc import Callable

from topics.engine.topic import Topic


class Listeners:
    def __init__(self) -> None:
        self.added: list[Callable[[Topic], None]] = []
        """Who wants to know of every topic that comes to be."""
        self.gone: list[Callable[[Topic], None]] = []
        """Who wants to know of every topic that is no more."""
        self.delayed: list[Callable[[Topic, int, int, int], None]] = []
        """Told of jobs, first and last seq, that are held back until a moment (`engine.queues`)."""
        self.chores: list[Callable[[], None]] = []
        """What features want done about once a second (`engine.upkeep.housekeeping`)."""
        self.captures: list[Callable[[Topic], None]] = []
        """Take a topic's state for a running checkpoint (`engine.upkeep.checkpoint`)."""
        self.turned: list[Callable[[int], None]] = []
        """Told when a checkpoint turned a shard: what its topics have so far is behind them in the log."""
        self.detach: list[Callable[[Topic], list[str]]] = []
        """Remove the routers that go with a deleted topic, and tell their names, sorted (`engine.routing`)."""
        self.begins: list[Callable[[], None]] = []
        """Note that seqs are about to be given out; OSError where that is not possible."""
