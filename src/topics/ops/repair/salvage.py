"""Salvage: recovery that keeps every valid frame and reports every loss.

| what is met | what becomes of it |
|---|---|
| a damaged place in the log whose frames can be told apart | exactly their records are lost |
| any other damaged place in the log | each topic of the shard may have lost its last records: as many as fit in |
| a topic that goes on behind such a place | nothing, or exactly the seqs that are missing, is lost |
| segments of topics that neither snapshots nor log know | the log has vanished: the same, for every topic |
| a frame about a topic that nobody created | the topic exists again, as `recovered-<number>` if its name is lost |
| two topics of one name | the younger has it: the older one's deletion was in a damaged place |

If records may be lost, their seqs are never assigned again, and the loss is reported to readers.
"""

from collections.abc import Callable, Mapping
from struct import error as StructError

import msgspec

from topics.engine.core import EngineCore
from topics.engine.features import block_in
from topics.engine.quotas import SortedNames
from topics.engine.recovery import LastRun, Recovery
from topics.engine.sealing import Sealer
from topics.engine.topic import Block, Topic
from topics.log.frame import Frame, FrameKind, decode_block, decode_config_change
from topics.log.fs import FileSystem
from topics.log.replay import LogDamaged, ShardEnd, topic_folders
from topics.log.snapshot_files import WalPosition
from topics.model.seq_ranges import LossReason
from topics.model.topic_config import Durability, decode_config
from topics.ops.repair.rebuild import Assembler, SeqRange
from topics.ops.verify.log_check import Hole, LogWalker, records_at_most
from topics.ops.verify.verification import Loss, Verification, relative
from topics.routers.router_frames import decode_forward
from topics.streams.stream_frames import creation_in


class Salvage(Recovery):
    """Rebuilds the state of a damaged folder as far as possible; the sealer writes new segments."""

    def __init__(
        self, core: EngineCore, fs: FileSystem, sealer: Sealer, look: Verification, last: LastRun, boot_id: str
    ) -> None:
        super().__init__(core, fs, last, boot_id, lambda done: None)
        self._look = look
        self._assembler = Assembler(core, fs, sealer, look, self._lose)
        self._removed_topics: set[int] = set()
        self._doubts: dict[int, int] = {}
        """Topics that may have lost records at their end, with the maximum number."""
        self._given_up: list[tuple[int, SeqRange, bool]] = []
        self._unseen_topics = 0
        self.replaced = self._assembler.replaced
        self.actions = self._assembler.actions

    def run(self) -> None:
        self._removed_topics = self._assembler.collect()
        self._build_topics()
        core, newest = self._core, self._look.chain.newest
        positions = {position.shard: position for position in newest.positions} if newest is not None else {}
        self._positions = positions
        for shard in self._shard_folders():
            self._salvage_log(shard, positions.get(shard, WalPosition(shard, 1, 1)))
        if self._look.unknown_topics:
            self._doubt(core.topics, records_at_most(core.options.wal_file_bytes))
        for position in positions.values():
            self.ends.setdefault(position.shard, ShardEnd(position.lsn, position.file, None, 0))
        self.changed = True
        for topic in core.topics.values():
            if topic.id in self._doubts:
                last = max(topic.head + self._doubts[topic.id], topic.ceiling)
                self._lose(topic, (topic.head + 1, last), False)
            self._reconcile(topic)
        self._name_topics()
        core.features.reconcile()
        core.count_all()
        self._report_lost_configs()
        self._number_topics()

    @property
    def losses(self) -> list[Loss]:
        """Permanently lost ranges, by topic and seq."""
        topics = self._core.topics
        reported = [(topics[i].name, *seqs, sure) for i, seqs, sure in self._given_up if i in topics]
        return [Loss(*loss) for loss in sorted(reported)]

    # Topics

    def _build_topics(self) -> None:
        look, assembler, core = self._look, self._assembler, self._core
        chain, newest = look.chain, look.chain.newest
        if newest is not None:
            core.next_topic_id = newest.next_topic_id
            core.epochs.restore(newest.epoch_floor, newest.deleted_epochs, newest.next_topic_id)
            self._snapshots_have_all = self._last.snapshots_have_all(newest)
        lost_bytes = [member.lost_bytes for member in chain.members if not member.complete]
        if chain.empty and look.unknown_topics:
            lost_bytes.append(None)
        inline = core.options.snapshot_inline_bytes
        for topic_id in sorted({*assembler.damaged, *assembler.loose, *self._in_folders()} - self._removed_topics):
            topic = assembler.build(topic_id)
            if topic is not None and topic.config.durability is Durability.EPHEMERAL:
                self._lose_unlogged(topic, topic.head)
            unsure = topic_id in assembler.unsure or topic_id not in assembler.damaged
            if topic is not None and unsure and lost_bytes:
                sizes = [inline if size is None else min(size, inline) for size in lost_bytes]
                self._doubts[topic_id] = records_at_most(max(sizes))
        if lost_bytes:
            self._unseen_topics += sum(records_at_most(size or inline) for size in lost_bytes)
            self.actions.append(
                "a snapshot is damaged: a topic whose state was only there, and of which neither segments nor records "
                "are left, is gone; of the others, what was deleted or had expired since may be back"
            )

    def _in_folders(self) -> set[int]:
        """Adds topics known only by their files, if the snapshots or the log may have lost them."""
        chain, layout = self._look.chain, self._core.layout
        if chain.complete and not self._look.ledger.damaged_shards:
            return self._look.unknown_topics
        found = topic_folders(self._fs, layout)
        first = chain.newest.next_topic_id if chain.complete and chain.newest is not None else 0
        return {topic_id for topic_id in found if topic_id >= first}

    def _name_topics(self) -> None:
        core = self._core
        for topic_id in sorted(core.topics, reverse=True):
            topic = core.topics[topic_id]
            if topic.name in core.directory:
                old, topic.name = topic.name, f"recovered-{topic_id}"
                while topic.name in core.directory:
                    topic.name += "-"
                self.actions.append(f"topic {topic_id} is called {topic.name} now: a younger one has its name {old}")
            core.directory.add(topic)
        core.names = SortedNames(core.directory.resident)

    def _report_lost_configs(self) -> None:
        for topic_id in sorted(self._assembler.configless & set(self._core.topics)):
            name = self._core.topics[topic_id].name
            self.actions.append(f"topic {name} (number {topic_id}): its config was lost and is the default now")

    def _number_topics(self) -> None:
        """No id is assigned twice, not even one in a lost frame."""
        core = self._core
        ledger = self._look.ledger
        known = [*core.topics, *self._removed_topics, *ledger.topic_ids, *ledger.strangers, *self._look.unknown_topics]
        core.next_topic_id = max(core.next_topic_id, max(known, default=0) + 1) + self._unseen_topics

    # The log

    def _salvage_log(self, shard: int, position: WalPosition) -> None:
        self.ends[shard] = self._walk_shard(shard, position, self._take, self._hole)

    def _walk_shard(
        self,
        shard: int,
        position: WalPosition,
        take: Callable[[Frame, int], None],
        damaged: Callable[[Hole], None],
    ) -> ShardEnd:
        chain = self._look.chain
        walker = LogWalker(self._fs, self._core.layout.shard(shard), self._same_boot)
        walker.shard = shard
        located = chain.located or chain.empty
        first, lsn = (position.file, position.lsn) if located else (1, None)
        return walker.walk(first, lsn, take, damaged)

    def walk_log(self, visit: Callable[[Frame], None]) -> None:
        for shard in self._shard_folders():
            position = self._positions.get(shard, WalPosition(shard, 1, 1))
            self._walk_shard(shard, position, lambda frame, number: visit(frame), lambda hole: None)

    def lose(self, topic: Topic, first: int, last: int) -> None:
        self._lose(topic, (first, last), True)

    def _hole(self, hole: Hole) -> None:
        core, look = self._core, self._look
        self._unseen_topics += hole.frames if hole.frames is not None else hole.records_max
        lost = look.ledger.lost_records.get((hole.shard, hole.first_lsn))
        for gone in lost or ():
            topic = core.topics.get(gone.topic_id)
            if topic is not None:
                self._go_on_at(topic, gone.to_seq)
        if lost is None:
            topics = {i: topic for i, topic in core.topics.items() if look.shard_of(i) in (None, hole.shard)}
            self._doubt(topics, hole.records_max)
        if lost is None or not all(damaged.records for damaged in hole.damaged):
            self.actions.append(
                f"{relative(core.layout, hole.finding.where)}: what else the damaged frames said, such as deletes and "
                "new configs, is lost"
            )

    def _doubt(self, topics: Mapping[int, Topic], records_max: int) -> None:
        for topic_id in topics:
            # Including ephemeral topics: a change to a logged class may have been in the damaged place.
            self._doubts[topic_id] = self._doubts.get(topic_id, 0) + records_max

    def _take(self, frame: Frame, number: int) -> None:
        try:
            if frame.topic_id not in self._removed_topics:
                self._apply(frame)
        except (ValueError, KeyError, StructError, LogDamaged) as error:
            self.actions.append(f"log file {number}: frame {frame.lsn} was left out: {error}")

    def _apply(self, frame: Frame) -> None:
        core, topic_id = self._core, frame.topic_id
        topic = core.topics.get(topic_id)
        creates = frame.kind is FrameKind.CREATE or frame.kind is FrameKind.STREAM_CREATE
        if creates and topic is not None:
            self._meet_again(topic, frame)
            return
        if frame.kind is FrameKind.DROP:
            self._removed_topics.add(topic_id)
            self._doubts.pop(topic_id, None)
            if core.topics.pop(topic_id, None) is not None and topic is not None:
                core.epochs.note_deleted(topic.name, topic.epoch)
            return
        if topic is None and not creates:
            topic = self._assembler.stranger(topic_id)
            self.actions.append(f"topic {topic.name} (number {topic_id}): its creation was lost")
        if topic is not None and frame.kind is FrameKind.FORWARD:
            self._forward(topic, frame)
        elif topic is not None and frame.kind is FrameKind.CONFIG:
            self._configure(topic, frame)
        else:
            super()._apply(frame)

    def _meet_again(self, topic: Topic, frame: Frame) -> None:
        """Handles the creation of a topic that was rebuilt from its files, which has its name and its config."""
        if topic.id in self._assembler.configless:
            created = creation_in(frame)
            assert created is not None
            topic.name, topic.epoch, topic.created_ts = created.name, created.epoch, created.ts
            topic.config = decode_config(created.config)
            self._assembler.configless.discard(topic.id)
        if frame.kind is FrameKind.STREAM_CREATE:
            self._core.features.replay(topic, frame, self)
            block = block_in(frame.kind, frame.body)
            if block is not None:
                self._append_block(topic, block)

    def _append_block(self, topic: Topic, body: memoryview) -> None:
        block = Block.of(decode_block(body))
        if not topic.config.durability.logged:
            self._begin_logging(topic, block.first_seq - 1)
        self._go_on_at(topic, block.first_seq - 1)
        if block.first_seq <= topic.head:
            return  # A recovered segment file has these records.
        self._core.applier.append(topic, block)
        topic.next_base = block.next_base

    def _skip_block(self, topic: Topic, body: memoryview) -> None:
        block = Block.of(decode_block(body))
        self._go_on_at(topic, block.first_seq - 1)
        if block.first_seq <= topic.head:
            return
        if self._look.ledger.damaged_shards:
            # The commit that these records belonged to may have been in a damaged place.
            self._lose(topic, (block.first_seq, block.last_seq), False)
        else:
            super()._skip_block(topic, body)
        topic.next_base = block.next_base

    def _forward(self, topic: Topic, frame: Frame) -> None:
        forward = decode_forward(frame.body)
        if not topic.config.durability.logged:
            self._begin_logging(topic, forward.first_seq - 1)
        self._go_on_at(topic, forward.first_seq - 1)
        if forward.first_seq > topic.head:
            self._core.features.replay(topic, frame, self)

    def _configure(self, topic: Topic, frame: Frame) -> None:
        head, config = decode_config_change(frame.body)
        if topic.config.durability.logged:
            self._go_on_at(topic, head)
        self._core.applier.configure(topic, decode_config(config), head)
        self._assembler.configless.discard(topic.id)

    def _begin_logging(self, topic: Topic, head: int) -> None:
        """An ephemeral topic logs nothing, so a change to another class was lost; the strongest class keeps every
        guarantee."""
        config = msgspec.structs.replace(topic.config, durability=Durability.FSYNC)
        self._core.applier.configure(topic, config, head)
        self.actions.append(f"topic {topic.name}: its change from class ephemeral was lost; it is of class fsync now")

    def _go_on_at(self, topic: Topic, head: int) -> None:
        """A frame has the position of its topic, so losses before it are known exactly."""
        self._doubts.pop(topic.id, None)
        if head > topic.head:
            self._lose(topic, (topic.head + 1, head), True)

    def _lose(self, topic: Topic, seqs: SeqRange, sure: bool) -> None:
        self._core.applier.gap(topic, *seqs, LossReason.CORRUPT)
        self._given_up.append((topic.id, seqs, sure))
