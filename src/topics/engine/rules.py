"""What a topic's config, its guard and its stage of life mean for those who write to it.

Asked by everyone who writes, of one object a topic has; it is made anew when one of these changes (`Topic.rules`). So
"is this topic plain?" has one answer, and a shortcut cannot come to another one than the long way.
"""

from topics.core.config import Discard, TopicConfig


class Rules:
    __slots__ = (
        "acks_after_sync", "ceilings", "keyed", "logged", "plain", "rejects", "reserves", "takes_all", "usual", "waits",
    )  # fmt: skip

    def __init__(
        self, config: TopicConfig, applied: TopicConfig, *, created: bool, guarded: bool, closing: bool
    ) -> None:
        """`applied` is the config that readers see; it differs while a new one is on its way."""
        durability = config.durability
        self.logged = durability.logged
        self.acks_after_sync = durability.acks_after_sync
        self.reserves = durability.reserves_seqs
        self.ceilings = durability.reserves_seqs or not durability.logged
        """Whether its seqs are shown before the disk knows of them, so that they need a ceiling."""
        self.waits = durability.acks_after_sync or not created
        """Whether everything that is logged for it waits for a sync."""
        self.rejects = config.discard is Discard.REJECT and bool(config.cap_records or config.cap_bytes)
        """Whether it refuses what does not fit, instead of dropping the oldest."""
        self.usual = not guarded and not closing
        """Whether nothing has to be asked before something is done to it."""
        self.takes_all = not guarded and not self.rejects
        """Whether it takes any records that a server has room for."""
        self.plain = (
            self.takes_all and created and not closing and durability.logged and not config.ttl_ms and config is applied
        )
        """Whether single records may share a block: nothing about the topic looks at each request by itself."""
        self.keyed = self.plain and config.idempotency_window_ms > 0
        """Whether those with an idempotency key may, too: where none is remembered, one may come twice in a block."""
