import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.errors import InvalidRequestError, TopicExistsIncompatibleError
from topics.model.topic_config import (
    DEFAULT_CONFIG,
    Discard,
    Durability,
    TopicConfig,
    TopicConfigPatch,
    TopicType,
    check_inline_config,
    decode_config,
    encode_config,
    parse_config,
    resolve_config,
)

PUBLISHED_DEFAULT = (
    b'{"type":"log","ttl_ms":0,"cap_records":0,"cap_bytes":0,"discard":"old","durable":false,"durability":"disk",'
    b'"priority":null,"auto_priority":true,"auto_create":true,"idempotency_window_ms":120000,"dedupe_node":true,'
    b'"lease_ms":30000,"claim_jitter_ms":0,"max_deliveries":0,"dead_letter":null,"leases_durable":false,'
    b'"retain_for_consumers":0,"max_per_second":0,"max_leased":0,"fair_tags":false,"result_retention_ms":0}'
)
U64_FIELDS = [
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "retain_for_consumers",
    "max_per_second",
    "max_leased",
    "result_retention_ms",
]
BOOL_FIELDS = ["durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable", "fair_tags"]


def resolved(existing: TopicConfig | None = None, /, **fields: Any) -> TopicConfig:
    return resolve_config(parse_config(msgspec.json.encode(fields)), "jobs", existing)


def test_the_default_is_answered_as_published() -> None:
    assert encode_config(resolved()) == PUBLISHED_DEFAULT


def test_a_patch_has_the_same_fields_in_the_same_order() -> None:
    assert TopicConfigPatch.__struct_fields__ == TopicConfig.__struct_fields__


@pytest.mark.parametrize("raw", [b"", b"{}", b" {} ", b'{"unknown":{"a":[1]}}', PUBLISHED_DEFAULT])
def test_default_topics_share_one_config(raw: bytes) -> None:
    assert resolve_config(parse_config(raw), "jobs", None) is DEFAULT_CONFIG


def test_a_stored_default_config_is_the_shared_one() -> None:
    assert decode_config(PUBLISHED_DEFAULT) is DEFAULT_CONFIG


@pytest.mark.parametrize(
    ("durable", "durability", "expected"),
    [
        (None, None, Durability.DISK),
        (False, None, Durability.DISK),
        (True, None, Durability.FSYNC),
        (True, "disk", Durability.DISK),
        (False, "fsync", Durability.FSYNC),
        (True, "ephemeral", Durability.EPHEMERAL),
        (None, "memory", Durability.MEMORY),
        (None, "fsync", Durability.FSYNC),
    ],
)
def test_each_way_to_name_a_durability(durable: bool | None, durability: str | None, expected: Durability) -> None:
    given_fields: dict[str, Any] = {"durable": durable, "durability": durability}
    config = resolved(**{key: value for key, value in given_fields.items() if value is not None})
    assert config.durability is expected
    assert config.durable is (expected is Durability.FSYNC)


@pytest.mark.parametrize(
    ("field", "asked", "stored"),
    [
        ("lease_ms", 0, 100),
        ("lease_ms", 1, 100),
        ("lease_ms", 100, 100),
        ("lease_ms", 86_400_000, 86_400_000),
        ("lease_ms", 10**12, 86_400_000),
        ("claim_jitter_ms", 5_000, 5_000),
        ("claim_jitter_ms", 5_001, 5_000),
        ("priority", 5_000, 5_000),
        ("priority", -(2**31), -(2**31)),
        ("priority", 2**31 - 1, 2**31 - 1),
        ("priority", None, None),
        ("ttl_ms", 2**64 - 1, 2**64 - 1),
        ("cap_bytes", 2**64 - 1, 2**64 - 1),
        ("dead_letter", None, None),
        ("dead_letter", "jobs.dlq", "jobs.dlq"),
    ],
)
def test_each_value_as_it_is_stored(field: str, asked: object, stored: object) -> None:
    assert getattr(resolved(**{field: asked}), field) == stored


def test_a_config_made_by_hand_is_resolved_too() -> None:
    config = TopicConfig(durability=Durability.FSYNC, lease_ms=1, claim_jitter_ms=9_999)
    assert (config.durable, config.lease_ms, config.claim_jitter_ms) == (True, 100, 5_000)
    assert msgspec.structs.replace(TopicConfig(), lease_ms=5).lease_ms == 100
    with pytest.raises(ValueError, match="set durability alone"):
        TopicConfig(durable=True)


def test_a_patch_replaces_the_whole_config() -> None:
    before = resolved(ttl_ms=60_000, cap_records=10, durable=True)
    assert resolved(before, ttl_ms=1) == TopicConfig(ttl_ms=1)


@pytest.mark.parametrize("kept", Durability)
def test_a_class_that_is_to_be_kept_is_kept_unless_the_patch_names_one(kept: Durability) -> None:
    before = TopicConfig(durability=kept, ttl_ms=5)
    patch = TopicConfigPatch(cap_records=1)
    assert resolve_config(patch, "jobs", before, keeps_durability=True) == TopicConfig(durability=kept, cap_records=1)
    named = TopicConfigPatch(durability=Durability.MEMORY)
    assert resolve_config(named, "jobs", before, keeps_durability=True).durability is Durability.MEMORY
    older = TopicConfigPatch(durable=False)
    assert resolve_config(older, "jobs", before, keeps_durability=True).durability is Durability.DISK


@pytest.mark.parametrize("kind", TopicType)
def test_an_omitted_type_is_kept(kind: TopicType) -> None:
    before = TopicConfig(type=kind, ttl_ms=5)
    assert resolved(before) == TopicConfig(type=kind)
    assert resolved(before, type=kind.value).type is kind


@pytest.mark.parametrize(("existing", "requested"), [("log", "queue"), ("queue", "log")])
def test_a_type_cannot_change(existing: str, requested: str) -> None:
    with pytest.raises(TopicExistsIncompatibleError) as caught:
        resolved(TopicConfig(type=TopicType(existing)), type=requested)
    assert caught.value.detail == {"topic": "jobs", "existing_type": existing, "requested_type": requested}


def test_an_unchanged_config_is_the_same_object() -> None:
    before = resolved(type="queue", ttl_ms=5)
    assert resolved(before, ttl_ms=5) is before
    assert resolved(before, ttl_ms=6) is not before


@pytest.mark.parametrize("kind", TopicType)
@pytest.mark.parametrize("name", ["jobs", "", "a/b", "dlq\n", "x" * 256, "é"])
def test_each_impossible_dead_letter_topic(name: str, kind: TopicType) -> None:
    with pytest.raises(InvalidRequestError, match=r"^config field dead_letter") as caught:
        resolved(type=kind.value, dead_letter=name)
    assert caught.value.detail == {"field": "dead_letter", "dead_letter": name[:255]}


def refused(raw: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_config(raw)
    return caught.value


@pytest.mark.parametrize("field", U64_FIELDS)
@pytest.mark.parametrize(
    "value", ["-1", "18446744073709551616", "1" * 5000, "1.0", "1e3", "1e999", "true", '"5"', "null", "[]", "{}"]
)
def test_each_number_that_is_not_unsigned(field: str, value: str) -> None:
    error = refused(f'{{"{field}":{value}}}'.encode())
    assert error.detail == {"field": field}
    assert error.message.startswith(f"config field {field}: ")


@pytest.mark.parametrize("value", ["2147483648", "-2147483649", "1.5", "true", '"high"', "[]"])
def test_each_priority_that_is_not_one(value: str) -> None:
    assert refused(f'{{"priority":{value}}}'.encode()).detail == {"field": "priority"}


@pytest.mark.parametrize("field", BOOL_FIELDS)
@pytest.mark.parametrize("value", ["0", "1", '"true"', "null"])
def test_each_flag_that_is_not_one(field: str, value: str) -> None:
    assert refused(f'{{"{field}":{value}}}'.encode()).detail == {"field": field}


@pytest.mark.parametrize(
    ("field", "allowed"),
    [("type", "log, queue"), ("discard", "old, reject"), ("durability", "ephemeral, memory, disk, fsync, remote")],
)
@pytest.mark.parametrize("value", ['"other"', '""', '"LOG"', "5", "null", '"' + "x" * 10_000 + '"'])
def test_each_choice_that_is_not_one(field: str, allowed: str, value: str) -> None:
    error = refused(f'{{"{field}":{value}}}'.encode())
    assert error.detail == {"field": field}
    assert error.message.endswith(f"; it must be one of {allowed}")
    assert len(error.message) < 350


@pytest.mark.parametrize("value", ["5", "[]", "true"])
def test_each_dead_letter_that_is_not_text(value: str) -> None:
    assert refused(f'{{"dead_letter":{value}}}'.encode()).detail == {"field": "dead_letter"}


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"null",
        b"5",
        b"{",
        b" ",
        b"{} {}",
        b'{"ttl_ms":1,}',
        b"\xef\xbb\xbf{}",
        b'{"dead_letter":"\xff"}',
        b'{"dead_letter":"\\ud800"}',
        b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_each_body_that_is_not_a_config(raw: bytes) -> None:
    assert refused(raw).message.startswith("config: ")


@pytest.mark.parametrize(
    "patch",
    [
        TopicConfigPatch(ttl_ms=-1),
        TopicConfigPatch(lease_ms=-5),
        TopicConfigPatch(cap_bytes=2**64),
        TopicConfigPatch(priority=2**31),
    ],
)
def test_a_patch_made_by_hand_is_checked_too(patch: TopicConfigPatch) -> None:
    with pytest.raises(InvalidRequestError):
        resolve_config(patch, "jobs", None)


u64 = st.integers(0, 2**64 - 1)
configs = st.builds(
    TopicConfig,
    type=st.sampled_from(TopicType),
    ttl_ms=u64,
    cap_records=u64,
    cap_bytes=u64,
    discard=st.sampled_from(Discard),
    durability=st.sampled_from(Durability),
    priority=st.none() | st.integers(-(2**31), 2**31 - 1),
    auto_priority=st.booleans(),
    auto_create=st.booleans(),
    idempotency_window_ms=u64,
    dedupe_node=st.booleans(),
    lease_ms=u64,
    claim_jitter_ms=u64,
    max_deliveries=u64,
    dead_letter=st.none() | st.just("jobs.dlq"),
    leases_durable=st.booleans(),
)


@given(configs)
def test_a_config_survives_storing_and_sending(config: TopicConfig) -> None:
    raw = encode_config(config)
    assert decode_config(raw) == config
    assert encode_config(decode_config(raw)) == raw
    assert resolve_config(parse_config(raw), "jobs", None) == config
    assert resolve_config(parse_config(raw), "jobs", config) is config


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"{}", DEFAULT_CONFIG),
        (b'{"ttl_ms":5,"added_later":{"x":1}}', TopicConfig(ttl_ms=5)),
        (b'{"durable":true}', TopicConfig(durability=Durability.FSYNC)),
        (b'{"lease_ms":1}', TopicConfig(lease_ms=100)),
    ],
)
def test_a_stored_config_of_another_version(raw: bytes, expected: TopicConfig) -> None:
    assert decode_config(raw) == expected


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"ttl_ms":"x"}', b'{"durability":"tape"}', b"\x00"])
def test_a_stored_config_that_is_malformed_is_not_guessed(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_config(raw)


@pytest.mark.parametrize(
    ("field", "meant"),
    [("durabilty", "durability"), ("cap_record", "cap_records"), ("ttl", "ttl_ms"), ("zzz", None), ("", None)],
)
def test_a_strict_reader_states_what_was_meant(field: str, meant: str | None) -> None:
    raw = json.dumps({"cap_bytes": 5, field: 1}).encode()
    assert parse_config(raw).cap_bytes == 5
    with pytest.raises(InvalidRequestError, match="unknown field") as refused:
        parse_config(raw, strict=True)
    assert refused.value.detail == {"field": field, **({"did_you_mean": meant} if meant else {})}
    with pytest.raises(InvalidRequestError, match="unknown field"):
        check_inline_config(b'{"records":[],"config":%b}' % raw)


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"durability":"fsync","dead_letter":null,"priority":1}'])
def test_a_strict_reader_takes_what_is_right(raw: bytes) -> None:
    assert parse_config(raw, strict=True) == parse_config(raw)


@pytest.mark.parametrize("body", [b"{}", b'{"config":null}', b'{"config":{}}', b'{"config":{"ttl_ms":1},"other":2}'])
def test_what_stands_beside_a_config_is_not_its_matter(body: bytes) -> None:
    check_inline_config(body)
