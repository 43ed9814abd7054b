import random

import pytest

from topics.model.topic_epochs import FIRST_TIME, TopicEpochs, epoch_at, public_source_id

NOW = 1_700_000_000_000


def test_epoch_is_the_second_of_creation_whatever_other_names_do() -> None:
    busy, quiet = TopicEpochs(), TopicEpochs()
    for number in range(1_000):
        busy.note_deleted(f"other-{number}", busy.next(f"other-{number}", NOW + number % 1_000))
    assert busy.next("orders", NOW) == quiet.next("orders", NOW) == epoch_at(NOW) > FIRST_TIME


def test_name_recreated_within_a_second_gets_a_higher_epoch() -> None:
    epochs = TopicEpochs()
    given = []
    for _ in range(5):
        given.append(epochs.next("orders", NOW))
        epochs.note_deleted("orders", given[-1])
    assert given == list(range(given[0], given[0] + 5))
    assert epochs.next("other", NOW) == given[0]


def test_deleted_names_are_forgotten_once_their_second_has_passed() -> None:
    epochs = TopicEpochs()
    epochs.note_deleted("orders", epochs.next("orders", NOW))
    assert list(epochs.deleted) == ["orders"]
    epochs.next("other", NOW + 1_000)
    assert not epochs.deleted


def test_remembered_names_are_bounded() -> None:
    epochs = TopicEpochs()
    last: dict[str, int] = {}
    for number in range(30_000):
        name = f"t{number % 11_000}"
        epoch = epochs.next(name, NOW)
        assert epoch > last.get(name, 0)
        last[name] = epoch
        epochs.note_deleted(name, epoch)
        assert len(epochs.deleted) <= 10_000


@pytest.mark.parametrize("back_ms", [1_000, 3_600_000, NOW])
def test_epochs_of_a_name_grow_over_a_clock_set_back_and_a_restart(back_ms: int) -> None:
    epochs = TopicEpochs()
    first = epochs.next("orders", NOW)
    epochs.note_deleted("orders", first)
    again = TopicEpochs()
    again.restore(epochs.floor, epochs.deleted, 7)
    assert again.next("orders", NOW - back_ms) == first + 1


def test_snapshot_without_floor_continues_behind_its_ids() -> None:
    epochs = TopicEpochs()
    epochs.restore(0, {}, 41)
    assert epochs.next("orders", 0) == 41
    assert epochs.next("orders", NOW) == epoch_at(NOW)


def test_replay_in_any_order_of_shards_keeps_the_order_of_epochs(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        epochs, now, alive, last = TopicEpochs(), NOW, dict[str, int](), dict[str, int]()
        shards: list[list[tuple[str, str, int, int]]] = [[], [], []]
        for number in range(30):
            now += chance.choice((0, 0, 1, 999, 1_000, -2_000))
            name = chance.choice("abc")
            shard = shards[number % 3]
            if name in alive:
                epochs.note_deleted(name, alive[name])
                shard.append(("drop", name, alive.pop(name), 0))
            else:
                alive[name] = epochs.next(name, now)
                assert alive[name] > last.get(name, 0)
                last[name] = alive[name]
                shard.append(("create", name, alive[name], now))
        replayed = TopicEpochs()
        for kind, name, epoch, at in [entry for shard in chance.sample(shards, 3) for entry in shard]:
            if kind == "create":
                replayed.note_created(epoch, at)
            else:
                replayed.note_deleted(name, epoch)
        for name, epoch in last.items():
            if name not in alive:
                assert replayed.next(name, now) > epoch


def test_number_of_a_source_is_its_id_only_for_epochs_of_earlier_releases() -> None:
    assert public_source_id(7, "orders", 7) == 7
    numbers = {public_source_id(topic_id, "orders", epoch_at(NOW)) for topic_id in range(1, 50)}
    assert len(numbers) == 1
    assert numbers != {public_source_id(1, "other", epoch_at(NOW))}
    assert max(numbers) < 1 << 53
