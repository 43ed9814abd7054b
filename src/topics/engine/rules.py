"""What a topic's config, its guard and its stage of life mean for those who write to it.

Asked by everyone who writes, of one object a topic has; another takes its place when one of these changes
(`Topic.rules`). So "is this topic plain?" has one answer, and a shortcut cannot come to another one than the long way.
Topics for which the same holds share it: most of a hundred thousand do.
"""

from topics.core.config import Discard, TopicConfig


class Rules:
    __slots__ = (
        "acks_after_sync", "ceilings", "closing", "created", "guarded", "keyed", "logged", "plain", "rejects",
        "reserves", "shares", "takes_all", "usual", "waits",
    )  # fmt: skip

    def __init__(self, config: TopicConfig, settled: bool, created: bool, guarded: bool, closing: bool) -> None:
        """`settled` says that readers see this config as well; they do not while it is on its way."""
        durability = config.durability
        self.created = created
        self.guarded = guarded
        self.closing = closing
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
        """Whether nothing has to be asked before something is done to it: it is there, for everyone. One that was
        deleted stays one that is closing."""
        self.takes_all = not guarded and not self.rejects
        """Whether it takes any records that a server has room for."""
        self.shares = (
            not self.rejects and created and not closing and durability.logged and not config.ttl_ms and settled
        )
        """Whether single records may share a block, where a guard has nothing to say about them."""
        self.plain = self.shares and not guarded
        """Whether they may: nothing about the topic looks at each request by itself."""
        self.keyed = self.plain and config.idempotency_window_ms > 0
        """Whether those with an idempotency key may, too: where none is remembered, one may come twice in a block."""


_SHARED_MAX = 4096
_shared: dict[tuple[int, bool, bool, bool, bool], tuple[TopicConfig, Rules]] = {}
"""Rules by the config they are made of, which they keep: so its address is nobody else's. Configs are shared, too."""


def rules_of(config: TopicConfig, settled: bool, created: bool, guarded: bool, closing: bool) -> Rules:
    key = (id(config), settled, created, guarded, closing)
    found = _shared.get(key)
    if found is None:
        if len(_shared) >= _SHARED_MAX:
            _shared.clear()
        found = _shared[key] = (config, Rules(config, settled, created, guarded, closing))
    return found[1]
