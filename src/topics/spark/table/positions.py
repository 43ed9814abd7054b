"""Which rows of a data file are deleted, by their places in it: what Iceberg calls position deletes.

Every engine that reads version 2 of the format honours them. Each data file has at most one file of them, which holds
all that is deleted in it and is replaced when more is; its name has a hash of that, so that whoever comes later knows
what it hides without opening it.
"""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from topics.spark.archive.files import Run
from topics.spark.archive.masks import Ints, Mask
from topics.spark.table.files import Wanted
from topics.spark.table.ranged import read_column
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
    state = None
    for place, mask in enumerate(wanted.hidden):
        if len(mask):
            state = state or xxhash.xxh3_64()
            data = mask.to_bytes()
            state.update(b"%d:%d:" % (place, len(data)))
            state.update(data)
    return state.hexdigest() if state is not None else ""


def hidden_positions(fs: FileSystem, wanted: Wanted) -> Ints:
    """The places of the deleted rows of a file, ascending. The file is opened only where nothing else can tell."""
    seqs: Ints | None = None
    found = [np.empty(0, np.int64)]
    for (start, run), mask in zip(wanted.file.starts(), wanted.hidden, strict=False):
        if not len(mask):
            continue
        places = _computed(run, mask)
        if places is None:
            seqs = read_column(fs, wanted.path, wanted.seq_column).to_numpy() if seqs is None else seqs
            places = np.flatnonzero(mask.hides(seqs[start : start + run.rows]))
        found.append(places + start)
    return np.concatenate(found)


def _computed(run: Run, mask: Mask) -> Ints | None:
    """The places within a run by arithmetic: where no seq is missing in it, or where all of it is deleted."""
    if mask.firsts[0] <= run.first_seq and mask.lasts[0] >= run.last_seq:
        return np.arange(run.rows)
    if run.rows != run.last_seq - run.first_seq + 1:
        return None
    counts = mask.lasts - mask.firsts + 1
    starts = np.cumsum(counts) - counts
    places: Ints = np.repeat(mask.firsts - run.first_seq - starts, counts) + np.arange(int(counts.sum()))
    return places


def encoded_positions(path: str, positions: Ints) -> bytes:
    """The Parquet file that says so."""
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), pa.array([path]))
    table = pa.Table.from_arrays([names.cast(pa.string()), pa.array(positions)], schema=_SCHEMA)
    target = io.BytesIO()
    pq.write_table(table, target, compression="zstd", use_dictionary=["file_path"])
    return target.getvalue()
