"""Filters over records of topics that nothing describes: as much of each is taken apart as the filter looks at."""

from topics.indexing.free import Looked, free_filter
from topics.indexing.fresh.batches import read_value
from topics.searching.messages import Filter, Result, views
from topics.wire.cuts import data_parts, head_of, tag_texts, tag_value


def filter_records(head: Filter, body: memoryview) -> Result:
    wanted = free_filter(head.filter)
    fields, matches = wanted.fields, wanted.matches
    seqs: list[int] = []
    scanned = 0
    for first_seq, view in views(head.pieces, body):
        raws = data_parts(view, 0, view.count)
        tags = dict(tag_texts(view, 0, view.count)) if "tag" in fields else {}
        for index, raw in enumerate(raws):
            ts, node = head_of(view, index) if "ts" in fields or "node" in fields else (0, None)
            tag = tags.get(index)
            looked = Looked(
                first_seq + index,
                ts,
                None if tag is None else tag_value(tag),
                node,
                read_value(raw) if "data" in fields else None,
            )
            if matches(looked):
                seqs.append(looked.seq)
        scanned += sum(map(len, raws))
    return Result(seqs=tuple(seqs), scanned_bytes=scanned)
