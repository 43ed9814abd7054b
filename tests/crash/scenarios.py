"""Short lives of an engine, each around one kind of change. A sweep stops or fails them at every call."""

from collections.abc import Callable
from random import Random

import msgspec

from tests.crash.harness import World


def beginning(world: World) -> None:
    """Topics that are just being made, with enough in them to be sealed."""
    world.start()
    world.append("sure", 1, durability="fsync")
    world.append("quick", 3)
    world.append("loose", 3, durability="memory")


def appending(world: World) -> None:
    """Batches of three classes, with keys; class disk crosses its ceiling."""
    world.start()
    world.append("sure", 2, durability="fsync")
    world.append("quick", 2)
    world.append("loose", 1, durability="memory")
    world.append("sure", 1, key="once")
    world.append("quick", 3, key="once")
    world.append("loose", 1)
    world.background_sync()
    world.append("quick", 4)
    world.append("sure", 1)


def appending_in_groups(world: World) -> None:
    """Several operations on several topics share one write and one sync."""
    world.start()
    world.put("sure", durability="fsync")
    world.hold()
    world.append("sure", 1, key="once")
    world.append("quick", 2)
    world.append("sure", 2)
    world.append("loose", 1, durability="memory")
    world.append("sure", 1)
    world.flush()
    world.hold()
    world.append("quick", 6)
    world.append("sure", 1)
    world.append("quick", 1, key="once")
    world.delete("sure", before=2)
    world.put("loose", durability="memory", cap_records=5)
    world.append("loose", 1)
    for _ in range(3):
        world.append("sure", 1)
        world.append("quick", 1)
        world.append("loose", 1)
    world.flush()


def turning_log_files(world: World) -> None:
    """Records so large that every other one begins a new log file."""
    world.start()
    for _ in range(3):
        world.append("sure", 1, size=700, durability="fsync")
        world.append("quick", 1, size=700)
        world.append("quick", 1, size=2500)
    world.delete("sure", before=2)
    world.append("sure", 1, size=100)


def deleting_many(world: World) -> None:
    """Deletes by tag of records that lie apart, in tails, in segments that are being written, and in files."""
    world.start()
    for name, durability in (("sure", "fsync"), ("quick", "disk"), ("brief", "ephemeral")):
        for tag in "abacabad":
            world.append(name, 1, tag=tag, durability=durability)
    world.delete("sure", tag="b")
    world.delete("brief", tag="a")
    world.checkpoint()
    world.append("quick", 2, tag="a")
    world.delete("sure", tag="a")
    world.delete("quick", tag="a")
    world.append("sure", 1, tag="c")
    world.checkpoint()
    world.delete("quick", tag="b")
    world.delete("sure", tag="c")


def deleting(world: World) -> None:
    """Deletes by bound and by tag, in tails, in segments, and of whole segments."""
    world.start()
    for name, durability in (("sure", "fsync"), ("quick", "disk")):
        for tag in ("a", "b", "a", "c"):
            world.append(name, 2, tag=tag, durability=durability)
    world.delete("sure", tag="b")
    world.delete("quick", before=2)
    world.checkpoint()
    world.append("sure", 1, tag="a")
    world.delete("sure", tag="a")
    world.delete("quick", tag="a")
    world.checkpoint()
    world.delete("sure", tag="c")
    world.append("sure", 1)
    world.delete("quick", before=9)
    world.append("quick", 1)


def sealing(world: World) -> None:
    """Tails become segments when they are large, and when they are old; deletes and appends go on."""
    world.start()
    for tag in ("a", "b", "a", "b"):
        world.append("sure", 4, tag=tag, durability="fsync")
        world.append("quick", 3, tag=tag)
    world.delete("sure", tag="b")
    world.seal("quick")
    world.append("quick", 1)
    world.seal("sure")
    world.append("sure", 2)
    world.delete("quick", tag="a")


def checkpointing(world: World) -> None:
    """Snapshots that add to each other, and full ones, with topics that did and did not change in between."""
    world.start()
    world.append("sure", 3, key="once", durability="fsync")
    world.append("quick", 8)
    world.append("gone", 7)
    world.append("loose", 2, durability="memory")
    world.checkpoint()
    world.append("quick", 1)
    world.drop("gone")
    world.checkpoint()
    world.append("sure", 1)
    world.append("new", 1)
    world.checkpoint()
    world.checkpoint(full=True)
    world.append("loose", 1)
    world.append("quick", 1)


def relocating(world: World) -> None:
    """Segments move to the cold folder; some lose records on the way, one its last, one its topic."""
    world.start()
    for tag in ("a", "b", "a"):
        world.append("sure", 6, tag=tag, durability="fsync")
    world.append("quick", 6, tag="a")
    world.append("quick", 6, tag="b")
    world.checkpoint()
    world.delete("sure", before=3)
    world.relocate("sure")
    world.relocate("quick")
    world.delete("sure", before=4)
    world.checkpoint()
    world.delete("sure", before=9)
    world.drop("quick")
    world.append("sure", 1)
    world.checkpoint()


def creating(world: World) -> None:
    """Topics made by a request and by a write."""
    world.start()
    world.put("sure", durability="fsync", cap_records=10)
    world.append("quick", 1)
    world.put("fleeting", durability="ephemeral")
    world.put("idle", ttl_ms=5)
    world.append("sure", 1)


def configuring(world: World) -> None:
    """A topic goes through every class, with records of each in it; caps that shrink take records with them."""
    world.start()
    world.append("restless", 2, durability="disk")
    world.put("restless", durability="memory")
    world.append("restless", 2, key="once")
    world.put("restless", durability="fsync")
    world.append("restless", 1)
    world.put("restless", durability="disk")
    world.append("restless", 5)
    world.append("sure", 6, durability="fsync")
    world.put("sure", durability="fsync", cap_records=4)
    world.put("restless", durability="fsync", cap_records=7)
    world.append("restless", 2)
    world.put("sure", durability="disk")
    world.append("sure", 1)


def forgetting(world: World) -> None:
    """Class ephemeral: its records live as long as the process, its topic and the topic's earlier records live on."""
    world.start()
    world.append("restless", 3, durability="fsync")
    world.put("restless", durability="ephemeral")
    world.append("restless", 2)
    world.delete("restless", before=2)
    world.checkpoint()
    world.append("restless", 7)
    world.append("fleeting", 3, durability="ephemeral")
    world.put("restless", durability="disk")
    world.append("restless", 2)
    world.checkpoint()
    world.append("fleeting", 1)
    world.put("fleeting", durability="fsync")
    world.append("fleeting", 1)


def dropping(world: World) -> None:
    """Topics with segments, flags and tails go, and come again under the same name."""
    world.start()
    for tag in ("a", "b", "a"):
        world.append("sure", 4, tag=tag, durability="fsync")
        world.append("quick", 4, tag=tag)
    world.checkpoint()
    world.delete("sure", tag="a")
    world.delete("quick", before=3)
    world.drop("sure")
    world.append("sure", 1, key="once", durability="fsync")
    world.drop("quick")
    world.checkpoint()
    world.put("quick", durability="fsync")
    world.append("quick", 1)
    world.drop("sure")


def capping(world: World) -> None:
    """Caps evict from tails and from segments with deleted records in them."""
    world.start()
    for name, durability in (("sure", "fsync"), ("quick", "disk")):
        world.put(name, durability=durability, cap_records=8)
        for tag in ("a", "b", "a", "c", "a"):
            world.append(name, 1, tag=tag)
        world.delete(name, tag="c")
        world.append(name, 1, tag="b")
    world.checkpoint()
    for name in ("sure", "quick"):
        for _ in range(5):
            world.append(name, 1)
        world.delete(name, tag="b")
        world.append(name, 1)
    world.checkpoint()
    world.append("sure", 5)
    world.put("quick", cap_bytes=4)
    world.append("quick", 2)


def expiring(world: World) -> None:
    """Time takes records, before and after they are sealed."""
    world.start()
    for name, durability in (("sure", "fsync"), ("quick", "disk")):
        world.append(name, 2, durability=durability, ttl_ms=1000)
    world.clock.advance(600)
    for name in ("sure", "quick"):
        world.append(name, 5)
    world.clock.advance(600)
    world.engine.housekeeper.tick()
    world.append("sure", 1)
    world.checkpoint()
    world.clock.advance(600)
    world.append("quick", 1)
    world.delete("sure", before=7)
    world.clock.advance(5000)
    world.append("sure", 1)
    world.engine.housekeeper.tick()


def stopping(world: World) -> None:
    """Clean stops, with and without anything to write down, and a kill."""
    world.start()
    world.append("sure", 7, key="once", durability="fsync")
    world.append("quick", 2)
    world.append("fleeting", 2, durability="ephemeral")
    world.close()
    world.start_over()
    world.close()
    world.start_over()
    world.append("quick", 1)
    world.delete("sure", before=3)
    world.kill()
    world.start_over()
    world.append("sure", 1)
    world.close()


def resharding(world: World) -> None:
    """The number of shards changes with a restart, up and down, so topics change their log."""
    world.start()
    for name in ("sure", "surer"):
        world.append(name, 2, durability="fsync")
    world.append("quick", 2)
    world.kill()
    world.options = msgspec.structs.replace(world.options, wal_shards=3)
    world.start_over()
    for name in ("sure", "surer", "quick"):
        world.append(name, 1)
    world.checkpoint()
    world.append("quick", 5)
    world.append("new", 1, durability="fsync")
    world.kill()
    world.options = msgspec.structs.replace(world.options, wal_shards=2)
    world.start_over()
    for name in ("sure", "surer", "quick", "new"):
        world.append(name, 1)
    world.close()


def consuming(world: World) -> None:
    """Consumers of three classes are created, commit, move back, are deleted, and go with their topic."""
    world.start()
    for name, durability in (("sure", "fsync"), ("quick", "disk"), ("loose", "memory")):
        world.append(name, 3, durability=durability)
        world.consume(name, "a")
        world.commit(name, "a", 2)
    world.consume("sure", "b", 3)
    world.hold()
    world.append("sure", 2)
    world.commit("sure", "a", 3)
    world.commit("sure", "a", 1)
    world.consume("quick", "b", 1)
    world.commit("quick", "b", 2)
    world.flush()
    world.checkpoint()
    world.commit("sure", "a", 5)
    world.forget("sure", "b")
    world.commit("quick", "a", 3)
    world.seal("quick")
    world.checkpoint()
    world.drop("sure")
    world.append("sure", 1, durability="fsync")
    world.consume("sure", "a")
    world.kill()
    world.start_over()
    world.commit("quick", "b", 3)
    world.forget("quick", "a")


def fencing(world: World) -> None:
    """Fences of three classes are set with records and by calls, and go with their topic."""
    world.start()
    for name, durability in (("sure", "fsync"), ("quick", "disk"), ("loose", "memory")):
        world.append(name, 2, fence="1", durability=durability)
        world.append(name, 1, fence="2")
    world.set_fence("sure", "3")
    world.hold()
    world.append("sure", 2, fence="4")
    world.append("sure", 1, fence="5", key="k")
    world.append("quick", 1)
    world.append("quick", 1, fence="6")
    world.flush()
    world.checkpoint()
    world.set_fence("quick", "")
    world.append("sure", 3, fence="7")
    world.seal("quick")
    world.checkpoint()
    world.drop("loose")
    world.append("loose", 1, durability="fsync")
    world.kill()
    world.start_over()
    world.append("loose", 1, fence="8")


def living(world: World) -> None:
    """A little of everything, for sweeps whose steps are expensive."""
    world.start()
    world.put("sure", durability="fsync", cap_records=9)
    world.append("quick", 2, tag="a")
    world.hold()
    world.append("sure", 3, tag="a", key="once")
    world.append("quick", 4, tag="b")
    world.append("sure", 3, tag="b")
    world.append("loose", 1, durability="memory")
    world.flush()
    world.append("gone", 6, durability="fsync")
    world.append("sure", 6)
    world.checkpoint()
    world.delete("sure", tag="b")
    world.append("sure", 1)
    world.relocate("sure")
    world.drop("gone")
    world.put("quick", durability="fsync")
    world.delete("quick", tag="a")
    world.seal("quick")
    world.checkpoint()
    world.append("quick", 1, size=2000)
    world.append("gone", 1)
    world.append("fleeting", 2, durability="ephemeral")
    world.append("loose", 2)
    world.consume("quick", "a", 1)
    world.commit("quick", "a", 2)


class RandomLife:
    """A random life, the same for each seed: longer than any scenario written by hand."""

    def __init__(self, seed: int, steps: int, classes: tuple[str, ...], restarts: bool = True) -> None:
        self._seed = seed
        self._steps = steps
        self._classes = classes
        self._restarts = restarts

    def __call__(self, world: World) -> None:
        random = Random(self._seed)
        world.start()
        for step in range(self._steps):
            random.choice(self._kinds(random))(world, random, step)

    def _kinds(self, random: Random) -> list[Callable[[World, Random, int], None]]:
        often = [self._append] * 6 + [self._append_group] * 2 + [self._delete] * 3 + [self._consume] * 2
        seldom = [self._put, self._drop, self._checkpoint, self._checkpoint, self._relocate, self._upkeep]
        return [*often, *seldom, self._restart] if self._restarts else [*often, *seldom]

    def _name(self, random: Random) -> str:
        return random.choice(("a", "b", "c"))

    def _config(self, random: Random) -> dict[str, object]:
        config: dict[str, object] = {"durability": random.choice(self._classes)}
        if random.random() < 0.4:
            config["cap_records"] = random.randrange(3, 12)
        if random.random() < 0.2:
            config["cap_bytes"] = random.randrange(20, 200)
        if random.random() < 0.3:
            config["ttl_ms"] = random.randrange(500, 3000)
        return config

    def _append(self, world: World, random: Random, step: int) -> None:
        key = f"key-{random.randrange(step + 1)}" if random.random() < 0.3 else None
        size = random.choice((0, 0, 0, 10, 300))
        tag = random.choice((None, "x", "y", "z"))
        # A repeated key sets no fence.
        fence = f"fence-{step}" if key is None and random.random() < 0.1 else None
        name, count = self._name(random), random.randrange(1, 5)
        world.append(name, count, tag=tag, key=key, size=size, fence=fence, **self._config(random))

    def _append_group(self, world: World, random: Random, step: int) -> None:
        world.hold()
        for _ in range(random.randrange(2, 6)):
            self._append(world, random, step)
        world.flush()

    def _delete(self, world: World, random: Random, step: int) -> None:
        if random.random() < 0.5:
            world.delete(self._name(random), tag=random.choice("xyz"))
        else:
            world.delete(self._name(random), before=random.randrange(1, 30))

    def _consume(self, world: World, random: Random, step: int) -> None:
        name, consumer, seq = self._name(random), random.choice("pq"), random.randrange(30)
        if random.random() < 0.1:
            world.forget(name, consumer)
        else:
            world.consume(name, consumer)
            world.commit(name, consumer, seq)

    def _put(self, world: World, random: Random, step: int) -> None:
        world.put(self._name(random), **self._config(random))

    def _drop(self, world: World, random: Random, step: int) -> None:
        if random.random() < 0.5:
            world.drop(self._name(random))

    def _checkpoint(self, world: World, random: Random, step: int) -> None:
        world.checkpoint(full=random.random() < 0.3)

    def _relocate(self, world: World, random: Random, step: int) -> None:
        world.relocate(self._name(random))

    def _upkeep(self, world: World, random: Random, step: int) -> None:
        world.clock.advance(random.randrange(1000))
        random.choice((world.background_sync, world.engine.housekeeper.tick, lambda: world.seal("a")))()

    def _restart(self, world: World, random: Random, step: int) -> None:
        random.choice((world.kill, world.close))()
        world.start_over()
