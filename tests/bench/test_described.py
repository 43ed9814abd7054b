"""Tests that the benchmark sends entries that match the schemas of its streams and can be counted."""

import json

import pytest

from bench.described import _TEN, KINDS, DescribedStreams, _entry
from bench.http import WORKLOADS
from topics.schema.contract import Contract, Intake, decide_profile, parse_profile
from topics.schema.documents import encode
from topics.schema.registry import Registry, Version


@pytest.mark.parametrize("kind", KINDS)
def test_entries_have_their_size_and_one_mark(kind: str) -> None:
    entry = _entry(kind, 300)
    assert len(entry) == 300 and entry.count("~") == 1
    request = DescribedStreams(kind).append("s", 3)
    assert len(json.loads(request.partition("\r\n\r\n")[2])) == 3 and request.count("~") == 3


def test_entries_are_what_their_streams_take() -> None:
    schema = Contract(Registry((Version(encode(_TEN), None, 0),)))
    evlog = decide_profile(Contract(), parse_profile({"kind": "evlog"}), is_json=True, empty=True, next_seq=0)
    for kind, contract in (("schema", schema), ("evlog", evlog)):
        taken = Intake(contract).take([_entry(kind, 200).encode()], now_ms=0)
        assert bytes(taken.payloads[0]).count(b"~") == 1


def test_every_kind_has_a_row() -> None:
    assert {workload.kind for workload in WORKLOADS} == {"", *KINDS}
