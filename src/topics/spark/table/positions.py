"""Which rows of a data file are deleted, by their places in it: what Iceberg calls position deletes.

Every engine that reads version 2 of the format honours them. Each data file has at most one file of them, which holds
all that is deleted in it and is replaced when more is; its name has a hash of that, so that whoever comes later knows
what it hides without opening it.
"""

import io
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from topics.spark.archive.masks import Ints, Mask
from topics.spark.table.files import TableFile, Wanted
from topics.storage.fs import FileSystem

PATH_ID, POS_ID = 2147483546, 2147483545
"""What Iceberg knows the two columns of such a file by."""

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"%d" % PATH_ID}),
        pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"%d" % POS_ID}),
    ]
)


def hash_of(wanted: Wanted) -> str:
    """Tells what is deleted in a file from anything else that could be; empty when nothing is."""
    parts = [(epoch, mask.to_bytes()) for epoch, mask in sorted(wanted.hidden.items()) if len(mask)]
    if not parts:
        return ""
    state = xxhash.xxh3_64()
    for epoch, data in parts:
        state.update(b"%d:%d:" % (epoch, len(data)))
        state.update(data)
    return state.hexdigest()


def hidden_positions(fs: FileSystem, wanted: Wanted) -> Ints:
    """The places of the deleted rows of a file, ascending."""
    places = _computed(wanted.file, wanted.hidden)
    return _looked_up(fs, wanted) if places is None else places


def _computed(file: TableFile, hidden: Mapping[int, Mask]) -> Ints | None:
    """The places by arithmetic, where no seq is missing among those that are asked for; None where one is."""
    found = [np.empty(0, np.int64)]
    start = 0
    for run in file.runs:
        mask = hidden.get(run.epoch)
        if mask is not None and len(mask := mask.within(run.first_seq, run.last_seq)):
            if mask.count() == run.last_seq - run.first_seq + 1:
                # All of it, whichever seqs it has: its topic was dropped.
                found.append(np.arange(start, start + run.rows))
            elif run.rows == run.last_seq - run.first_seq + 1:
                found.append(_every(mask) - run.first_seq + start)
            else:
                return None
        start += run.rows
    return np.concatenate(found)


def _every(mask: Mask) -> Ints:
    """All seqs of a mask."""
    counts = mask.lasts - mask.firsts + 1
    starts = np.cumsum(counts) - counts
    seqs: Ints = np.repeat(mask.firsts - starts, counts) + np.arange(int(counts.sum()))
    return seqs


def _looked_up(fs: FileSystem, wanted: Wanted) -> Ints:
    file = fs.open(wanted.file.path)
    try:
        table = pq.read_table(pa.BufferReader(file.map()), columns=["epoch", "seq"], partitioning=None)
    finally:
        file.close()
    epochs, seqs = table["epoch"].to_numpy(), table["seq"].to_numpy()
    gone = np.zeros(len(seqs), dtype=np.bool_)
    for epoch, mask in wanted.hidden.items():
        gone |= (epochs == epoch) & mask.hides(seqs)
    return np.flatnonzero(gone)


def encoded_positions(path: str, positions: Ints) -> bytes:
    """The Parquet file that says so."""
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), pa.array([path]))
    table = pa.Table.from_arrays([names.cast(pa.string()), pa.array(positions)], schema=_SCHEMA)
    target = io.BytesIO()
    pq.write_table(table, target, compression="zstd", use_dictionary=["file_path"])
    return target.getvalue()
