"""Pages of records over HTTP, kept as the text they are: what was written comes out of Spark byte for byte."""

import msgspec
import pyarrow as pa

from topics.client import Client, Gap
from topics.client.requests import Request, diff
from topics.spark.columns import CONTENT_TYPE_KEY, JSON_TYPE, RECORD_SCHEMA
from topics.spark.connector.options import Access

_PAGE_RECORDS = 1000
_PAGE_BYTES = 8 * 1024 * 1024
_CONTENT_TYPE_MARK = f'"{CONTENT_TYPE_KEY}"'.encode()
_NONE = msgspec.Raw()


class RawRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    data: msgspec.Raw
    meta: msgspec.Raw = _NONE


class RawPage(msgspec.Struct, frozen=True, kw_only=True):
    records: list[RawRecord]
    next_from_seq: int
    tombstone: Gap | None = None


class _Meta(msgspec.Struct):
    content_type: str = msgspec.field(name=CONTENT_TYPE_KEY, default=JSON_TYPE)


_decode_meta = msgspec.json.Decoder(_Meta).decode


def open_client(access: Access) -> Client:
    assert access.http is not None
    return Client(access.http, api_key=access.api_key)


def page_request(topic: str, epoch: int, cursor: int, wanted: int) -> Request[RawPage]:
    """A read of at most so many records behind a cursor of a topic of this epoch, and of no other."""
    request = diff(
        topic,
        cursor,
        limit=min(wanted, _PAGE_RECORDS),
        include_tags=True,
        max_batch_bytes=_PAGE_BYTES,
        epoch=epoch or None,
        streams=True,
    )
    return Request(method=request.method, target=request.target, body=request.body, answer=RawPage)


def as_batch(topic: str, epoch: int, records: list[RawRecord]) -> pa.RecordBatch:
    """Records of an answer in the columns of a segment's."""
    count = len(records)
    columns = [
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(epoch, pa.int64()), count),
        pa.array([record.seq for record in records], pa.int64()),
        pa.array([record.ts * 1000 for record in records], pa.timestamp("us", tz="UTC")),
        pa.array([record.node for record in records], pa.string()),
        pa.array([record.tag for record in records], pa.string()),
        pa.array([str(bytes(record.meta), "utf-8") if len(record.meta) else None for record in records], pa.string()),
        pa.array([str(bytes(record.data), "utf-8") for record in records], pa.string()),
        pa.array([_content_type(record.meta) for record in records], pa.string()),
        pa.repeat(pa.scalar(False), count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _content_type(meta: msgspec.Raw) -> str:
    if not len(meta) or _CONTENT_TYPE_MARK not in bytes(meta):
        return JSON_TYPE
    try:
        return _decode_meta(meta).content_type
    except msgspec.ValidationError:
        return JSON_TYPE
