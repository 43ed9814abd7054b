"""Records as lines of a file."""

import json
from datetime import UTC, datetime

import pyarrow as pa

from topics.spark.arrow_slices import RECORD_SCHEMA
from topics.spark.transfer import _as_lines, _from_lines


def test_a_record_is_one_line_however_it_was_written() -> None:
    row = {
        "topic": "a", "epoch": 1, "seq": 1, "ts": datetime(2026, 1, 1, tzinfo=UTC), "node": None, "tag": "t",
        "meta": '{"k":\n1}', "data": '{\r\n "a": "x\\n"\n}', "content_type": "application/json", "deleted": False,
    }  # fmt: skip
    [lines] = _as_lines(iter([pa.RecordBatch.from_pylist([row], RECORD_SCHEMA)]))
    [line] = lines["value"].to_pylist()
    assert line.splitlines() == [line]
    [back] = _from_lines(iter([lines]))
    [found] = back.to_pylist()
    assert (json.loads(found["data"]), json.loads(found["meta"])) == ({"a": "x\n"}, {"k": 1})
