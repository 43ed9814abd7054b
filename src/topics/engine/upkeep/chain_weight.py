"""How much of the snapshots that make up the current state still counts.

One that rewrites all of them costs as much as there are topics, and pays when it leaves out more than it has. What is
said of a topic for the first time makes nothing superfluous, however many there are; what is said of one again does,
and so does the end of one.
"""


class ChainWeight:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        """The bytes of each snapshot of the chain."""
        self.live_bytes = 0
        """What one that rewrites everything would have, about."""
        self.live_topics = 0

    @property
    def is_mostly_dead(self) -> bool:
        return sum(self.sizes) > 2 * self.live_bytes

    def found(self, size: int, told: int, live: int) -> None:
        """A snapshot, older than those before, tells of so many topics, of some as the first."""
        self.sizes.insert(0, size)
        self.live_bytes += size * live // told if told else 0
        self.live_topics += live

    def rewritten(self, size: int, topics: int) -> None:
        self.sizes, self.live_bytes, self.live_topics = [size], size, topics

    def added(self, kept: int, size: int, new_bytes: int, new: int, dropped: int) -> None:
        """Behind the first `kept` snapshots there is one of `size`, which has `new_bytes` about `new` topics; so many
        others are no more. What it has of known ones is taken to be as much as was there before."""
        if self.live_topics:
            self.live_bytes -= self.live_bytes * min(dropped, self.live_topics) // self.live_topics
        self.sizes[kept:] = [size]
        self.live_bytes += new_bytes
        self.live_topics = max(self.live_topics - dropped, 0) + new
