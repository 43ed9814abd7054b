"""Schema promotion in Spark: converts records of earlier schema versions with the functions that the server uses.

Files and logs keep every entry as it was written. A reader that needs entries in the current version gets the stream's
schema registry from a server or the catalog, and promotes batch by batch. Records of other topics or epochs, of the
current version, or of bytes are passed unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from topics.log.catalog import CatalogTopic
from topics.schema.contract import decode_contract
from topics.schema.documents import encode
from topics.schema.registry import Promoter, Registry, Version, decode_registry, encode_registry
from topics.spark.arrow_slices import JSON_TYPE
from topics_client import Client, StreamSchema, TopicNotFound

_DATA, _CONTENT_TYPE = "data", "content_type"


class StreamVersions(NamedTuple):
    """The schema registry of one stream, as plain values that can be pickled."""

    epoch: int
    registry: bytes

    @property
    def promoter(self) -> Promoter:
        return decode_registry(self.registry).promoter


Versions = Mapping[str, StreamVersions]
"""By stream name; only streams with anything to promote."""


def registry_of(schema: StreamSchema) -> Registry:
    """The registry of a server's response."""
    return Registry(
        tuple(
            Version(
                encode(schema.schemas[one.version]),
                encode(schema.lenses[one.version - 1]) if one.version > 1 else None,
                one.offset,
            )
            for one in schema.boundaries
        )
    )


def ask_versions(client: Client, names: Iterable[str], least: int = 2) -> dict[str, StreamVersions]:
    """The registries of the streams with at least `least` versions. Read after the positions of a read, each is at
    least as new as every record of the read."""
    found = {}
    for name in names:
        try:
            details = client.get_stream_details(name)
        except TopicNotFound:
            continue
        if details is not None and details.schema.current_version >= least:
            found[name] = StreamVersions(details.stream.epoch, encode_registry(registry_of(details.schema)))
    return found


def catalogued_versions(
    catalog: Mapping[str, CatalogTopic], names: Iterable[str], least: int = 2
) -> dict[str, StreamVersions]:
    """The same from the catalog beside the segments, without a server."""
    found = {}
    for name in names:
        topic = catalog.get(name)
        registry = decode_contract(topic.contract).registry if topic is not None and topic.contract else Registry()
        if topic is not None and registry.current_version >= least:
            found[name] = StreamVersions(topic.epoch, encode_registry(registry))
    return found


def promoted(batches: Iterable[pa.RecordBatch], versions: Versions) -> Iterator[pa.RecordBatch]:
    """The batches with records of earlier versions promoted to the current one."""
    promoters = {name: (one.epoch, one.promoter) for name, one in versions.items()}
    for batch in batches:
        yield _promoted(batch, promoters) if promoters else batch


def _promoted(batch: pa.RecordBatch, promoters: Mapping[str, tuple[int, Promoter]]) -> pa.RecordBatch:
    for name in pc.unique(batch["topic"]).to_pylist():
        if name in promoters:
            epoch, promoter = promoters[name]
            batch = _promoted_topic(batch, name, epoch, promoter)
    return batch


def _promoted_topic(batch: pa.RecordBatch, name: str, epoch: int, promoter: Promoter) -> pa.RecordBatch:
    # Entries are numbered from 0, seqs from 1.
    old = pc.and_(pc.equal(batch["topic"], name), pc.less_equal(batch["seq"], promoter.current_from))
    old = pc.and_(old, pc.and_(pc.equal(batch["epoch"], epoch), pc.equal(batch[_CONTENT_TYPE], JSON_TYPE)))
    places = pc.indices_nonzero(old)
    if not len(places):
        return batch
    texts, seqs = batch[_DATA].take(places).to_pylist(), batch["seq"].take(places).to_pylist()
    shown = [
        str(bytes(promoter.promote(seq - 1, text.encode())), "utf-8") for seq, text in zip(seqs, texts, strict=True)
    ]
    data = pc.replace_with_mask(batch[_DATA], old, pa.array(shown, pa.string()))
    at = batch.schema.get_field_index(_DATA)
    return batch.set_column(at, batch.schema.field(at), data)
