"""Records as the versions of their streams show them now, by the very functions that the server reads with.

Files and logs keep every entry as it was written. Whoever wants entries of earlier versions as ones of the current
version takes the stream's registry along, which a server or the catalog tells, and promotes batch by batch. Records of
other topics, of other epochs, of the current version or of bytes pass as they are.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from topics.log.catalog import CatalogTopic
from topics.schema.contract import decode_contract
from topics.schema.documents import encode
from topics.schema.promotion import Promoter
from topics.schema.registry import Registry, Version, decode_registry, encode_registry
from topics.spark.arrow_slices import JSON_TYPE
from topics_client import Client, StreamSchema, TopicNotFound

_DATA, _CONTENT_TYPE = "data", "content_type"


class StreamVersions(NamedTuple):
    """The registry of one stream, as plain values that can travel."""

    epoch: int
    registry: bytes

    @property
    def promoter(self) -> Promoter:
        return decode_registry(self.registry).promoter


Versions = Mapping[str, StreamVersions]
"""By the name of the stream; only those that have anything to promote."""


def registry_of(schema: StreamSchema) -> Registry:
    """The registry that a server tells."""
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
    """The registries of those streams that have so many versions. Asked for behind the positions of a read, each is at
    least as new as every record that the read will meet."""
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
    """The same out of the catalog beside the segments, where there is no server to ask."""
    found = {}
    for name in names:
        topic = catalog.get(name)
        registry = decode_contract(topic.contract).registry if topic is not None and topic.contract else Registry()
        if topic is not None and registry.current_version >= least:
            found[name] = StreamVersions(topic.epoch, encode_registry(registry))
    return found


def promoted(batches: Iterable[pa.RecordBatch], versions: Versions) -> Iterator[pa.RecordBatch]:
    """The batches with the records of earlier versions in the current one."""
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
    # An entry is counted from 0, and a seq from 1.
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
