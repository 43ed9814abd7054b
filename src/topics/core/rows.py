"""The fragment, which is a record as it is stored, and the row that says where its parts are.

A text holds records as the fragments a JSON answer is made of, with a comma between two of them:

    {"$seq":7,"$ts":1748470000123,"$node":"a","data":DATA,"meta":META,"$tag":"t"}

so that reading is slicing. `$node`, `meta` and `$tag` are there only when the record has them. A row says where a
fragment's parts are, in little endian:

    offset  size  field
         0     4  start of the fragment in the text coordinate
         4     4  length of the meta part, `,"meta":META`, or 0
         8     2  length of the tag part, `,"$tag":"t"`, or 0
        10     2  length of the head, from `{` up to the first byte of DATA

Rows count in the topic's running text coordinate and not from a block's own beginning: blocks that follow each other
are put into one segment by joining their texts with commas and their rows as they are, with no arithmetic per record.

This is all that the formats of files and the encoders of answers have to agree about.
"""

from struct import Struct
from typing import Final

ROW: Final = Struct("<IIHH")
ROW_BYTES: Final = ROW.size
ROW_WORDS: Final = ROW_BYTES // 4

SEQ_NAME: Final = b'{"$seq":'
TS_NAME: Final = b',"$ts":'
NODE_NAME: Final = b',"$node":'
DATA_NAME: Final = b',"data":'
META_NAME: Final = b',"meta":'
TAG_NAME: Final = b',"$tag":'

TRAIT_TAGS: Final = 1
TRAIT_NODES: Final = 2
TRAIT_META: Final = 4
"""What some record of a block has."""


def words(rows: bytes | memoryview) -> memoryview:
    """Rows as 32-bit words: word 3i is record i's start, 3i+1 its meta part, 3i+2 tag (low half) and head (high)."""
    return memoryview(rows).cast("I")
