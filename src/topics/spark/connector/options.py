"""Connector options and offsets, parsed and checked. The names follow those of Spark's Kafka source."""

import base64
import fnmatch
import logging
import zlib
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec

from topics.log.layout import Layout, check_place
from topics.model.settings import SettingsError
from topics.model.topic_config import is_server_name, is_topic_name
from topics.spark.arrow_slices import RECORD_SCHEMA
from topics.spark.segment_reader import GROUP_BYTES
from topics_protocol.config import DEFAULT_URL

# Offsets. An offset is a topic's epoch and a seq: everything up to that seq has been read.
#
# That is the cursor of the API, and since seqs begin at 1 it is also Kafka's convention: the number of the next record,
# counted from 0. The form in a checkpoint and in JSON is
#
#     {"orders": {"epoch": 3, "seq": 1200}, "invoices": {"epoch": 4, "seq": 0}}
#
# and a user may leave the epoch out, or write `"earliest"`, `"latest"` or a bare number for a topic.
#
# A stream writes the offsets of all topics with every micro-batch. Offsets of more than `PLAIN_MAX` topics are packed
# into one string, a fifth as long:
#
#     {"packed": base64 of zlib of the JSON of [names in order, differences of the epochs, seqs]}

Word = Literal["earliest", "latest"]
PLAIN_MAX = 100
_PACKED = "packed"

Offset = dict[str, int]
"""`{"epoch": ..., "seq": ...}`, in the plain types of a Spark checkpoint."""
Offsets = dict[str, Offset]


class Point(msgspec.Struct, frozen=True):
    """A cursor from a user; epoch 0 means the current epoch of the topic."""

    seq: int
    epoch: int = 0


class Bound(msgspec.Struct, frozen=True):
    """One end of a read: a default for all topics, and overrides for single topics."""

    word: Word
    by_topic: Mapping[str, Word | Point] = {}

    def of(self, topic: str) -> Word | Point:
        return self.by_topic.get(topic, self.word)


def parse_bounds(text: str, option: str) -> Bound:
    """Parses `startingOffsets` or `endingOffsets`; raises ValueError with the accepted forms."""
    if text == "earliest":
        return Bound("earliest")
    if text == "latest":
        return Bound("latest")
    word: Word = "earliest" if option == "startingOffsets" else "latest"
    try:
        decoded = msgspec.json.decode(text, type=dict[str, Any])
        return Bound(word, {name: _point(value) for name, value in decoded.items()})
    except (msgspec.DecodeError, ValueError):
        raise ValueError(
            f"option {option} is {text!r}; accepted is earliest, latest or JSON such as "
            '{"orders": 1200, "invoices": {"epoch": 4, "seq": 0}, "events": "latest"}'
        ) from None


def _point(value: object) -> Word | Point:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Point(value)
    return msgspec.convert(value, Point)


def to_checkpoint(offsets: Offsets) -> dict[str, Any]:
    """Offsets in the form of a checkpoint."""
    if len(offsets) <= PLAIN_MAX:
        return dict(offsets)
    names = sorted(offsets)
    epochs = [offsets[name]["epoch"] for name in names]
    steps = [after - before for before, after in pairwise([0, *epochs])]
    columns = msgspec.json.encode([names, steps, [offsets[name]["seq"] for name in names]])
    return {_PACKED: base64.b64encode(zlib.compress(columns, 6)).decode()}


def from_checkpoint(written: Mapping[str, Any]) -> Offsets:
    """Decodes the offsets of a checkpoint, in either form. A topic may be named `packed`: its offset is never a
    string."""
    word = written.get(_PACKED)
    if not isinstance(word, str):
        return dict(written)
    columns = zlib.decompress(base64.b64decode(word))
    names, steps, seqs = msgspec.json.decode(columns, type=tuple[list[str], list[int], list[int]])
    return {name: offset(epoch, seq) for name, epoch, seq in zip(names, accumulate(steps), seqs, strict=True)}


def offset(epoch: int, seq: int) -> Offset:
    return {"epoch": epoch, "seq": seq}


Mode = Literal["auto", "http", "segments"]

_MODES = ("auto", "http", "segments")
_KNOWN = (
    "url", "apiKey", "path", "coldDir", "archive", "topic", "topics", "topicPattern", "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "tagPrefix", "includeDeleted", "maxRecordsPerTrigger",
    "minPartitions", "failOnDataLoss", "failOnMissingTopic", "mode", "recordsPerPartition", "bytesPerPartition",
    "promoted", "typed", "columns", "metaAs", "minRecordsPerTrigger", "maxTriggerDelay", "consumer",
    "batchRecords", "create", "atomic", "idempotencyWindowMs", "writeId",
)  # fmt: skip
_OF_SPARK = ("checkpointlocation", "queryname")
"""Options that Spark itself reads and passes on."""
_BY_LOWER = {name.lower(): name for name in _KNOWN}

_WRITE_ID_CHARS_MAX = 200
_CONSUMER_CHARS_MAX = 128
_TRIGGER_DELAY_MS = 900_000
"""Like Spark's Kafka source."""


class OptionError(ValueError):
    """An invalid option; the message names it and the accepted values."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How records are read: over HTTP, from the files, or both."""

    mode: Mode = "auto"
    url: str | None = None
    api_key: str | None = None
    path: str | None = None
    cold_dir: str | None = None

    @property
    def layout(self) -> Layout | None:
        """The data folder with the sealed segments, when the mode allows reading it."""
        return None if self.path is None or self.mode == "http" else Layout(self.path, self.cold_dir)

    @property
    def http(self) -> str | None:
        """The URL of the server, when the mode allows HTTP."""
        if self.mode == "segments":
            return None
        return self.url if self.url is not None or self.path is not None else DEFAULT_URL

    def __repr__(self) -> str:
        # Spark prints partitions, and the key is a secret.
        return f"Access(mode={self.mode!r}, url={self.url!r}, path={self.path!r})"


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    access: Access
    topics: tuple[str, ...]
    pattern: str
    starting: Bound
    ending: Bound
    from_ts: int
    to_ts: int
    from_ts_by: Mapping[str, int] = {}
    """The starting times of single topics."""
    to_ts_by: Mapping[str, int] = {}
    tag_prefix: str
    include_deleted: bool
    max_records: int | None
    partitions_min: int
    records_per_partition: int
    bytes_per_partition: int
    fail_on_loss: bool
    fail_on_missing: bool
    """Whether a named topic that does not exist is an error."""
    promoted: bool = False
    """Whether records of earlier schema versions are promoted to the current version."""
    typed: bool = False
    """Whether the members of a stream's entries are columns, by the current version of its schema."""
    columns: tuple[str, ...] = ()
    """The columns to read; none means all."""
    meta_map: bool = False
    """Whether `meta` is a map of texts instead of one JSON text."""
    min_records: int = 0
    """A micro-batch waits for this many records, at most `trigger_delay_ms`."""
    trigger_delay_ms: int = 0
    archive: str | None = None
    """The folder of an archive, whose records come before those of the log."""
    consumer: str | None = None
    """The consumer that shows on the server what a query has processed."""

    def selects(self, name: str) -> bool:
        """Whether a topic is read. Patterns do not match the server's own streams, which must be named."""
        if self.topics:
            return name in self.named
        return not is_server_name(name) and fnmatch.fnmatchcase(name, self.pattern)

    def from_of(self, topic: str) -> int:
        return self.from_ts_by.get(topic, self.from_ts)

    def to_of(self, topic: str) -> int:
        return self.to_ts_by.get(topic, self.to_ts)

    @property
    def named(self) -> frozenset[str]:
        return _as_set(self.topics)


@lru_cache(maxsize=8)
def _as_set(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    api_key: str | None
    topic: str | None
    batch_records: int
    create: bool
    atomic: bool
    write_id: str | None


def read_options(given: Mapping[str, str], streaming: bool) -> ReadOptions:
    options = _normal(given)
    # With a starting timestamp the default is earliest: latest would skip records after it.
    starting = "latest" if streaming and "startingTimestamp" not in options else "earliest"
    topics = _names(options)
    pattern = options.get("topicPattern", "")
    if len({"topic", "topics", "topicPattern"} & options.keys()) != 1 or not (topics or pattern):
        raise OptionError("set exactly one of the options topic, topics and topicPattern")
    if streaming and "endingOffsets" in options:
        raise OptionError("endingOffsets is for batches: a stream has no end")
    if streaming and "archive" in options:
        raise OptionError("the archive is read in batches: a stream follows the log")
    from_ts, from_ts_by = _moments(options, "startingTimestamp", 0)
    to_ts, to_ts_by = _moments(options, "endingTimestamp", 2**63 - 1)
    min_records = _number(options, "minRecordsPerTrigger", 1) if "minRecordsPerTrigger" in options else 0
    max_records = _number(options, "maxRecordsPerTrigger", 1) if "maxRecordsPerTrigger" in options else None
    if max_records is not None and max_records < min_records:
        raise OptionError(f"minRecordsPerTrigger is {min_records}, more than maxRecordsPerTrigger, {max_records}")
    return ReadOptions(
        access=_access(options),
        topics=topics,
        pattern=pattern,
        starting=parse_bounds(options.get("startingOffsets", starting), "startingOffsets"),
        ending=parse_bounds(options.get("endingOffsets", "latest"), "endingOffsets"),
        from_ts=from_ts,
        to_ts=to_ts,
        from_ts_by=from_ts_by,
        to_ts_by=to_ts_by,
        tag_prefix=options.get("tagPrefix", ""),
        include_deleted=_flag(options, "includeDeleted", False),
        max_records=max_records,
        min_records=min_records,
        trigger_delay_ms=_number(options, "maxTriggerDelay", 0, _TRIGGER_DELAY_MS),
        columns=_columns(options),
        meta_map=_meta_as(options) == "map",
        partitions_min=_number(options, "minPartitions", 1, 1),
        records_per_partition=_number(options, "recordsPerPartition", 1, 100_000),
        bytes_per_partition=_number(options, "bytesPerPartition", 1, GROUP_BYTES),
        fail_on_loss=_flag(options, "failOnDataLoss", True),
        fail_on_missing=_flag(options, "failOnMissingTopic", True),
        promoted=_flag(options, "promoted", False),
        typed=_typed(options, topics),
        archive=_place(options, "archive"),
        consumer=_consumer(options, streaming),
    )


def _consumer(options: Mapping[str, str], streaming: bool) -> str | None:
    name = options.get("consumer")
    if name is None:
        return None
    if not streaming:
        raise OptionError("consumer is for streams: a batch commits no cursor")
    if _access(options).http is None:
        raise OptionError("consumer commits cursors to a server: set the option url, and leave out mode=segments")
    if not is_topic_name(name) or len(name) > _CONSUMER_CHARS_MAX:
        raise OptionError(
            f"option consumer is {name!r}; accepted is 1 to {_CONSUMER_CHARS_MAX} of A-Z a-z 0-9 . _ : - beginning "
            "with a letter or digit"
        )
    return name


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in options.get("columns", "").split(",") if name.strip()))
    unknown = [name for name in names if name not in RECORD_SCHEMA.names]
    if unknown:
        raise OptionError(f"there is no column {', '.join(unknown)}; there are {', '.join(RECORD_SCHEMA.names)}")
    if names and _flag(options, "typed", False):
        raise OptionError("columns chooses those of records: leave out columns or typed")
    return names


def _meta_as(options: Mapping[str, str]) -> str:
    found = options.get("metaAs", "json")
    if found not in ("json", "map"):
        raise OptionError(f"option metaAs is {found!r}; accepted is json or map")
    return found


def _typed(options: Mapping[str, str], topics: tuple[str, ...]) -> bool:
    typed = _flag(options, "typed", False)
    if typed and len(topics) != 1:
        raise OptionError("typed columns are those of one stream: name it with the option topic")
    if typed and _flag(options, "includeDeleted", False):
        raise OptionError("typed columns cannot show deleted records: leave out includeDeleted or typed")
    return typed


def _names(options: Mapping[str, str]) -> tuple[str, ...]:
    """The named topics. A single `topic` is not split, since the name of a stream may have a comma."""
    if "topics" not in options:
        return tuple(filter(None, [options.get("topic", "")]))
    return tuple(dict.fromkeys(name.strip() for name in options["topics"].split(",") if name.strip()))


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _normal(given)
    if options.get("mode", "http") == "segments":
        raise OptionError("records are written over HTTP only; leave out the option mode")
    return WriteOptions(
        url=options.get("url", DEFAULT_URL),
        api_key=options.get("apiKey"),
        topic=options.get("topic"),
        batch_records=_number(options, "batchRecords", 1, 5_000),
        create=_flag(options, "create", True),
        atomic=_flag(options, "atomic", True),
        write_id=_write_id(options),
    )


def _write_id(options: Mapping[str, str]) -> str | None:
    # No longer used, but accepted for jobs that still set it.
    _number(options, "idempotencyWindowMs", 0, 0)
    given = options.get("writeId")
    if given is not None and (not is_topic_name(given) or len(given) > _WRITE_ID_CHARS_MAX):
        raise OptionError(
            f"option writeId is {given!r}; accepted is 1 to {_WRITE_ID_CHARS_MAX} of A-Z a-z 0-9 . _ : - beginning "
            "with a letter or digit"
        )
    return given


def _access(options: Mapping[str, str]) -> Access:
    mode = options.get("mode", "auto")
    if mode not in _MODES:
        raise OptionError(f"option mode is {mode!r}; accepted is one of {', '.join(_MODES)}")
    if mode == "segments" and "path" not in options:
        raise OptionError("mode=segments reads the data folder: give its place in the option path, or to load()")
    path = options.get("path")
    return Access(
        mode=mode,  # type: ignore[arg-type]
        url=options.get("url"),
        api_key=options.get("apiKey"),
        path=path.rstrip("/") or "/" if path is not None else None,
        cold_dir=_place(options, "coldDir"),
    )


def _place(options: Mapping[str, str], name: str) -> str | None:
    """A folder, or the URL of an object store."""
    try:
        return check_place(options.get(name))
    except SettingsError as error:
        raise OptionError(f"option {name}: {error}") from error


def _normal(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their canonical names, as Spark lower-cases them. Raises OptionError for an unknown name."""
    options = {}
    for name, value in given.items():
        known = _BY_LOWER.get(name.lower())
        if name.lower() in _OF_SPARK:
            continue
        if known is None:
            raise OptionError(f"there is no option {name!r}; there are {', '.join(sorted(_KNOWN))}")
        options[known] = value
    return options


def _number(options: Mapping[str, str], name: str, minimum: int, default: int | None = None) -> int:
    text = options.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit() or int(text) < minimum:
        raise OptionError(f"option {name} is {text!r}; accepted is a whole number of at least {minimum}")
    return int(text)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} is {text!r}; accepted is true or false")
    return text == "true"


def _moments(options: Mapping[str, str], name: str, default: int) -> tuple[int, Mapping[str, int]]:
    """A time for all topics, or times of single topics as a JSON object."""
    text = options.get(name)
    if text is None:
        return default, {}
    if not text.lstrip().startswith("{"):
        return _moment(text, name), {}
    try:
        times = msgspec.json.decode(text, type=dict[str, str | int])
    except msgspec.DecodeError:
        raise OptionError(
            f'option {name} is {text!r}; accepted is a time, or JSON such as {{"orders": "2026-03-01", "events": 0}}'
        ) from None
    return default, {topic: _moment(str(time), name) for topic, time in times.items()}


def _moment(text: str, name: str) -> int:
    """Milliseconds since 1970, or an ISO 8601 time, in UTC without an offset."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise OptionError(f"option {name} is {text!r}; accepted is milliseconds since 1970 or ISO 8601") from None
    if moment.tzinfo is None:
        moment = datetime.fromisoformat(moment.isoformat() + "+00:00")
    return int(moment.timestamp() * 1000)


# Data loss: records that were lost before they were read.
#
# The server reports the exact range of a loss in a tombstone. A query fails on one unless `failOnDataLoss=false` is
# set; then the loss is logged with its range, and the query continues after it.

_log = logging.getLogger(__name__)


class DataLossError(RuntimeError):
    """Records of the query's range were lost."""


class Losses(msgspec.Struct):
    """Counts lost records, or raises DataLossError."""

    fail: bool
    records: int = 0

    def record_loss(self, topic: str, first: int, last: int, reason: str) -> None:
        """Records the loss of the seqs `first` to `last` of a topic."""
        if self.fail:
            raise DataLossError(
                f"topic {topic}: records {first} to {last} are gone ({reason}) before they were read; start from "
                "another offset, or set failOnDataLoss=false to log losses and go on"
            )
        self.records += max(last - first + 1, 0)
        _log.warning(
            "records were lost before they were read",
            extra={"topic": topic, "from_seq": first, "to_seq": last, "reason": reason},
        )
