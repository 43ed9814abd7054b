"""Settings: every value an operator can choose, in one table.

The class bodies are the table: name, type, default, bounds and help of a setting stand together, and everything else is
derived from them: the options of the engine, the environment variable (`TOPICS_` and the name in capitals), the flag,
the checks and `SETTINGS`, which flags, documentation and tests iterate. Limits on requests are settings like any other.

A flag beats the environment, which beats the default. A blank variable counts as not set, as container files expect.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
from msgspec import Meta

from topics.model.limits import KIB, MIB, Limits

__all__ = ["SETTINGS", "Setting", "Settings", "SettingsError"]


# One setting, and how a value given for it is read and checked.

Kind = Literal["integer", "text", "choice"]
Value = int | str | None

# 18 digits always fit a signed 64-bit integer, which is what the formats on disk can hold.
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
# `host:port`, with an IPv6 host in brackets because it has its own colons.
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[^:]*))?", re.ASCII)


class SettingsError(ValueError):
    """A setting has an unusable value. The message names the setting, the value and the accepted values."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of one setting for flags, checks and documentation."""

    name: str
    kind: Kind
    default: Value
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    help: str

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"TOPICS_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def accepted(self) -> str:
        """The accepted values, in words that end a sentence."""
        if self.kind == "text":
            return "a non-empty text"
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"a whole number from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"a whole number of at least {self.minimum}"
        return "a whole number"


def read_value(setting: Setting, given: object, source: str) -> int | str:
    """The checked value of `given`, which may be text as well as a number; `source` names its origin in an error."""
    if setting.kind == "integer":
        return _read_integer(setting, given, source)
    if not isinstance(given, str) or not given or (setting.choices and given not in setting.choices):
        raise _refusal(setting, given, source)
    return given


def as_integer(given: object) -> int | None:
    """The whole number that `given` is or spells; None for anything else."""
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return None


def split_address(given: str, source: str) -> tuple[str, str | None]:
    """The host and, where the text has one, the port of `host`, `host:port`, `[ipv6]` or `[ipv6]:port`."""
    match = _ADDRESS.fullmatch(given)
    if match is None or match["port"] == "":
        raise SettingsError(f"{source} is {given!r}; accepted is a host, host:port or [IPv6 address]:port")
    return match["v6"] or match["name"], match["port"]


def _read_integer(setting: Setting, given: object, source: str) -> int:
    number = as_integer(given)
    if number is None:
        raise _refusal(setting, given, source)
    too_small = setting.minimum is not None and number < setting.minimum
    too_large = setting.maximum is not None and number > setting.maximum
    if too_small or too_large:
        raise _refusal(setting, given, source)
    return number


def _refusal(setting: Setting, given: object, source: str) -> SettingsError:
    return SettingsError(f"{source} is {given!r}; accepted is {setting.accepted}")


GIB = 1024 * MIB

_Switch = Literal["0", "1", "false", "true"]

# The limits have their defaults where they are enforced.
_LIMITS = Limits()


def _number(help: str, minimum: int = 0, maximum: int | None = None) -> Meta:
    return Meta(ge=minimum, le=maximum, description=help)


def _text(help: str) -> Meta:
    return Meta(description=help)


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that the engine takes unchanged; `topics.engine.EngineOptions` adds those that a server computes."""

    # The write-ahead log.
    wal_shards: Annotated[int, _number("Log shards; 0 is one per CPU, at most 8.", 0, 64)] = 0
    wal_file_bytes: Annotated[int, _number("Size at which a log file is rotated.", 64 * KIB, 64 * GIB)] = 64 * MIB
    sync_interval_ms: Annotated[
        int, _number("Maximum time that records of class disk stay unsynced.", 1, 86_400_000)
    ] = 50
    commit_window_us: Annotated[int, _number("Group commit: maximum wait for more writes to share a sync.")] = 500
    commit_queue_bytes: Annotated[int, _number("Maximum bytes waiting for a commit, per shard.", 1)] = 64 * MIB
    disk_reserve_seqs: Annotated[
        int, _number("Sequence numbers a topic reserves in memory; a power cut skips them.", 1)
    ] = 65_536

    # Backups.
    backup_interval_ms: Annotated[int, _number("Time between scheduled backups; 0 is never.")] = 0
    backup_ship_ms: Annotated[
        int, _number("Interval at which the log is shipped to the backup storage; 0 ships none.")
    ] = 10_000
    backup_keep: Annotated[int, _number("Backups to keep, plus up to an eighth; 0 keeps all.")] = 0
    backup_log_bytes: Annotated[
        int, _number("Log kept until the next backup for point-in-time restore; 0 keeps none.")
    ] = 4 * GIB

    remote_flush_ms: Annotated[
        int, _number("Class remote: minimum time between two uploads of the log.", 1, 60_000)
    ] = 50
    remote_timeout_ms: Annotated[
        int, _number("Class remote: longest wait for the backup storage before a write is answered 503.", 1)
    ] = 30_000

    dead_letter_attention_ms: Annotated[
        int, _number("Age from which dead letters need attention in the console and in metrics; 0 is at once.")
    ] = 0

    # Thresholds and measures of backpressure.
    pressure_lag_ms: Annotated[int, _number("Event loop lag at which backpressure begins.", 1)] = 5
    pressure_commit_ms: Annotated[int, _number("Commit time at which backpressure begins.", 1)] = 20
    pressure_coalesce_percent: Annotated[
        int, _number("Pressure at which deliveries are coalesced; 101 is never.", 1, 101)
    ] = 20
    pressure_widen_percent: Annotated[
        int, _number("Pressure at which group commits wait longer; 101 is never.", 1, 101)
    ] = 40
    pressure_defer_percent: Annotated[
        int, _number("Pressure at which negative priorities and routers wait; 101 is never.", 1, 101)
    ] = 80
    pressure_refuse_percent: Annotated[int, _number("Pressure at which appends are refused; 101 is never.", 1, 101)] = (
        95
    )
    coalesce_max_ms: Annotated[int, _number("Maximum time between deliveries under pressure.")] = 20
    commit_window_max_us: Annotated[int, _number("Maximum group commit wait under pressure.")] = 10_000

    # Sealed segments, and the memory that records use before and after they are sealed.
    segment_max_events: Annotated[int, _number("Records at which a segment is sealed; 0 counts as 1.", 1)] = 10_000
    segment_max_bytes: Annotated[int, _number("Bytes at which a segment is sealed.", 1, GIB)] = 64 * MIB
    segment_max_age_ms: Annotated[int, _number("Age at which a segment is sealed; 0 is never.")] = 3_600_000
    hot_retain_segments: Annotated[int, _number("Newest sealed segments of a topic kept in the data folder.")] = 4
    hot_retain_bytes: Annotated[
        int, _number("Sealed bytes of a topic kept in the data folder; 0 is by count only.")
    ] = 0
    tail_memory_bytes: Annotated[
        int, _number("Memory of unsealed records; beyond it the largest tails are sealed early.", 1)
    ] = 128 * MIB
    awake_topics: Annotated[
        int,
        _number("Topics kept in memory; idle ones beyond it are paged out to the snapshot."),
    ] = 10_000
    map_cache_bytes: Annotated[int, _number("Bytes of sealed segments that may be open at once.")] = 256 * MIB

    # Checkpoints.
    snapshot_interval_ms: Annotated[int, _number("Maximum time between checkpoints.", 1)] = 60_000
    snapshot_wal_bytes: Annotated[int, _number("Log bytes after which a checkpoint runs.", 1)] = 256 * MIB
    snapshot_inline_bytes: Annotated[
        int, _number("A tail larger than this is sealed at a checkpoint instead of copied into it.")
    ] = 256 * KIB


class Settings(EngineSettings, frozen=True, kw_only=True):
    """The settings of one server, checked."""

    # Where it listens and where it keeps its data.
    host: Annotated[str, _text("Address to listen on; host:port or [IPv6]:port sets the port too.")] = "127.0.0.1"
    port: Annotated[int, _number("Port to listen on; 0 lets the system choose one.", 0, 65_535)] = 4000
    port_file: Annotated[str | None, _text("File that receives the bound host:port.")] = None
    data_dir: Annotated[str, _text("Data folder; one server at a time.")] = "./topics-data"
    shared_files: Annotated[_Switch, _text("Let other users read the data folder as far as the umask allows.")] = "0"
    cold_dir: Annotated[
        str | None,
        _text("Cold tier: folder or object store URL for old sealed segments; unset keeps them in the data folder."),
    ] = None
    cold_cache_bytes: Annotated[int, _number("Local cache of segments of an object store.")] = GIB

    backup_dir: Annotated[str | None, _text("Backup storage: folder or object store URL; servers may share it.")] = None
    primary_lease_ms: Annotated[
        int,
        _number("Lease of the primary in the backup storage, so that a standby can take over; 0 is none.", 0, 600_000),
    ] = 0
    standby: Annotated[_Switch, _text("Wait for the lease of the primary, then take over.")] = "0"
    standby_reads: Annotated[
        _Switch, _text("Serve reads while waiting for the lease, from the shipped log of the primary.")
    ] = "0"
    standby_poll_ms: Annotated[
        int, _number("Interval at which a standby that serves reads looks for shipped log.", 10, 60_000)
    ] = 250
    advertise_url: Annotated[
        str | None, _text("URL of this server for clients of other servers; unset is the bound address.")
    ] = None

    full_disk_reserve_bytes: Annotated[
        int,
        _number("Disk space reserved so that deletes work when the disk is full; 0 reserves none.", maximum=1024 * GIB),
    ] = 32 * MIB

    tls_cert_file: Annotated[
        str | None, _text("PEM file with the certificate and its chain for https; unset is http.")
    ] = None
    tls_key_file: Annotated[str | None, _text("PEM file with the private key; SIGHUP reloads both files.")] = None
    http2: Annotated[_Switch, _text("Offer HTTP/2; 0 is HTTP/1.1 only.")] = "1"
    audit_file: Annotated[str | None, _text("Audit log of refused and destructive requests; SIGHUP reopens it.")] = None

    # Authentication.
    api_keys: Annotated[
        str | None, _text("API keys: secret[:scopes[:prefixes]], separated by commas; unset disables authentication.")
    ] = None
    key_file: Annotated[
        str | None, _text("Key file of topics key, reloaded when it changes; turns authentication on.")
    ] = None
    allow_insecure_no_auth: Annotated[_Switch, _text("Allow serving other machines without keys.")] = "0"
    allowed_hosts: Annotated[str | None, _text("Additional Host names that a server without keys accepts, or *.")] = (
        None
    )
    cors_origins: Annotated[
        str | None, _text("Origins whose pages may read answers, such as https://app.example.com, or *.")
    ] = None
    trusted_proxies: Annotated[
        str | None, _text("Addresses or networks of proxies whose X-Forwarded-For is used in the logs.")
    ] = None
    probe_auth: Annotated[_Switch, _text("Require a key for health and readiness.")] = "0"
    max_inflight_per_key: Annotated[int, _number("Maximum concurrent requests of a key; 0 is no limit.")] = 1000
    max_connections: Annotated[int, _number("Maximum connections; fewer if file descriptors do not suffice.", 1)] = (
        20_000
    )
    max_unread_bytes: Annotated[
        int, _number("Maximum answer bytes that clients have not read; reads get shorter towards it.", 64 * KIB)
    ] = 256 * MIB
    drain_ms: Annotated[int, _number("Time to finish requests on shutdown.")] = 10_000

    # Limits on what is stored and asked.
    max_topics: Annotated[int, _number("Maximum topics; 0 is no limit.")] = _LIMITS.max_topics
    max_routers: Annotated[int, _number("Maximum routers; 0 is no limit.")] = _LIMITS.max_routers
    max_total_bytes: Annotated[int, _number("Maximum live bytes of all topics; 0 is no limit.")] = (
        _LIMITS.max_total_bytes
    )
    max_topics_per_key: Annotated[
        int, _number("Maximum topics and streams under the prefixes of a key; 0 is no limit.")
    ] = _LIMITS.max_topics_per_key
    max_routers_per_key: Annotated[int, _number("Maximum routers under the prefixes of a key; 0 is no limit.")] = (
        _LIMITS.max_routers_per_key
    )
    max_consumers_per_topic: Annotated[int, _number("Maximum named consumers of a topic; 0 is no limit.")] = (
        _LIMITS.max_consumers_per_topic
    )
    max_consumers_per_key: Annotated[
        int, _number("Maximum named consumers of the topics under the prefixes of a key; 0 is no limit.")
    ] = _LIMITS.max_consumers_per_key
    max_schedules: Annotated[int, _number("Maximum schedules; 0 is no limit.")] = _LIMITS.max_schedules
    max_schedules_per_key: Annotated[int, _number("Maximum schedules under the prefixes of a key; 0 is no limit.")] = (
        _LIMITS.max_schedules_per_key
    )
    max_bytes_per_key: Annotated[int, _number("Maximum live bytes under the prefixes of a key; 0 is no limit.")] = (
        _LIMITS.max_bytes_per_key
    )
    max_memory_bytes: Annotated[
        int,
        _number(
            "Memory budget for ephemeral records, idempotency keys, producers, schemas and jobs with a history; "
            "0 is no limit."
        ),
    ] = _LIMITS.max_memory_bytes
    max_memory_bytes_per_key: Annotated[int, _number("Memory budget under the prefixes of a key; 0 is no limit.")] = (
        _LIMITS.max_memory_bytes_per_key
    )
    max_fanout_bytes: Annotated[
        int, _number("Maximum bytes a second that routers copy from topics with more than 8 routers; 0 is no limit.")
    ] = _LIMITS.max_fanout_bytes
    max_fanout_bytes_per_key: Annotated[
        int, _number("The same for topics under the prefixes of one key; 0 is no limit.")
    ] = _LIMITS.max_fanout_bytes_per_key
    max_batch_records: Annotated[int, _number("Maximum records of an append.", 1)] = _LIMITS.max_batch_records
    max_record_bytes: Annotated[int, _number("Maximum bytes of a record.", 1)] = _LIMITS.max_record_bytes
    awake_us: Annotated[
        int,
        _number("Busy-polling time between requests under load; 0 disables it.", 0, 10_000),
    ] = 200
    max_body_bytes: Annotated[int, _number("Maximum bytes of a request body.", 1)] = 64 * MIB
    max_meta_bytes: Annotated[int, _number("Maximum bytes of a record's meta.", 0, MIB - 64)] = _LIMITS.max_meta_bytes
    max_meta_keys: Annotated[int, _number("Maximum keys of a record's meta.")] = _LIMITS.max_meta_keys
    max_tag_bytes: Annotated[int, _number("Maximum bytes of a tag.", 1, 640)] = _LIMITS.max_tag_bytes
    max_node_bytes: Annotated[int, _number("Maximum bytes of a node name.", 1, 640)] = _LIMITS.max_node_bytes
    max_idempotency_key_chars: Annotated[int, _number("Maximum characters of an idempotency key.", 1, 16_383)] = (
        _LIMITS.max_idempotency_key_chars
    )
    max_idempotency_keys: Annotated[
        int, _number("Maximum idempotency keys that a topic remembers within its window; 0 is no limit.")
    ] = _LIMITS.max_idempotency_keys
    max_claim: Annotated[int, _number("Maximum jobs of a claim, and seqs of an acknowledgement.", 1)] = (
        _LIMITS.max_claim
    )
    max_limit: Annotated[int, _number("Maximum records of a read.", 1)] = _LIMITS.max_limit
    max_batch_bytes: Annotated[int, _number("Maximum bytes of the records of a read.", 1)] = _LIMITS.max_batch_bytes

    strict_config: Annotated[_Switch, _text("Refuse unknown fields of a topic config, as ?strict=true does.")] = "0"

    # Transactions.
    max_transactions: Annotated[int, _number("Maximum open transactions of a key; 0 is no limit.")] = (
        _LIMITS.max_transactions
    )
    max_transaction_ids: Annotated[int, _number("Maximum transaction ids that are open or remembered.", 1)] = (
        _LIMITS.max_transaction_ids
    )
    max_transaction_ids_per_key: Annotated[int, _number("Maximum transaction ids per key prefixes; 0 is no limit.")] = (
        _LIMITS.max_transaction_ids_per_key
    )
    max_transaction_parts: Annotated[int, _number("Maximum parts of a transaction.", 1)] = _LIMITS.max_transaction_parts
    max_transaction_records: Annotated[int, _number("Maximum records of a transaction.", 1)] = (
        _LIMITS.max_transaction_records
    )
    max_transaction_bytes: Annotated[
        int, _number("Maximum bytes of a transaction; its commit holds them in memory.", 1)
    ] = _LIMITS.max_transaction_bytes
    max_staged_bytes: Annotated[
        int, _number("Maximum bytes staged by the open transactions of a key; 0 is no limit.")
    ] = _LIMITS.max_staged_bytes
    transaction_timeout_ms: Annotated[
        int, _number("Maximum idle time of an open transaction before it is aborted.", 1)
    ] = _LIMITS.transaction_timeout_ms
    transaction_retention_ms: Annotated[int, _number("Time the last commit of a transaction id is remembered.", 1)] = (
        _LIMITS.transaction_retention_ms
    )

    # Following topics live, by event stream or WebSocket.
    max_watch_sessions: Annotated[int, _number("Maximum watch sessions; 0 is no limit.")] = 10_000
    max_watch_sessions_per_key: Annotated[int, _number("Maximum watch sessions of a key; 0 is no limit.")] = 1_000
    max_watch_topics: Annotated[int, _number("Maximum topics of a watch or subscription.", 1)] = 256
    max_sse_connections: Annotated[int, _number("Maximum event streams and WebSockets; 0 is no limit.")] = 10_000
    max_sse_connections_per_key: Annotated[
        int, _number("Maximum event streams and WebSockets of a key; 0 is no limit.")
    ] = 1_000
    watch_session_ttl_ms: Annotated[int, _number("Lifetime of a watch session without a stream.", 1)] = 300_000
    buffer_grace_ms: Annotated[
        int, _number("Time without reading after which retention in a watch is reported as from_seq_too_old.")
    ] = 5_000
    slow_consumer_timeout_ms: Annotated[
        int, _number("Time without reading after which a live connection is closed.", 1)
    ] = 30_000
    test_min_heartbeat_ms: Annotated[int, _number("Minimum heartbeat interval; for tests.", 1, 1_000)] = 1_000
    # Streams (/v1).
    streams_durability: Annotated[
        Literal["memory", "disk", "fsync", "remote"], _text("Durability class of topics created over /v1.")
    ] = "fsync"
    streams_long_poll_ms: Annotated[int, _number("Default timeout of long-polls in /v1.", 0)] = 3_000
    streams_long_poll_max_ms: Annotated[int, _number("Maximum timeout of long-polls in /v1.", 0)] = 4_500
    search_stream_bytes: Annotated[int, _number("Memory index of a stream: bytes of its newest entries.", 64 * KIB)] = (
        128 * MIB
    )
    search_scan_bytes: Annotated[int, _number("Bytes of unindexed older entries that one query scans.", 0)] = 512 * MIB
    max_searches: Annotated[int, _number("Maximum concurrent searches; 0 is no limit.", 0)] = 256
    max_searches_per_key: Annotated[int, _number("Maximum concurrent searches per key prefixes; 0 is no limit.", 0)] = (
        32
    )
    search_memory_bytes: Annotated[int, _number("Memory of the search indexes of all streams.", 64 * KIB)] = 512 * MIB
    streams_webhook_ca_file: Annotated[
        str | None, _text("PEM file of additional certificate authorities for webhooks.")
    ] = None
    max_subscriptions: Annotated[int, _number("Maximum subscriptions; 0 is no limit.")] = 10_000
    max_subscriptions_per_key: Annotated[int, _number("Maximum subscriptions per key prefixes; 0 is no limit.")] = 1_000
    streams_immutable: Annotated[
        _Switch,
        _text("Let caches keep full chunks of streams forever; set 0 if deleted entries must disappear from caches."),
    ] = "1"
    streams_registry: Annotated[_Switch, _text("Write stream events to the stream __registry__.")] = "1"
    streams_metrics: Annotated[_Switch, _text("Write server metrics to the stream __stream_metrics__.")] = "1"
    streams_metrics_ms: Annotated[int, _number("Interval of __stream_metrics__.", 100)] = 10_000
    streams_metrics_retention_ms: Annotated[int, _number("Retention of __stream_metrics__; 0 is by size only.")] = (
        604_800_000
    )
    streams_webhook_loopback: Annotated[
        Literal["auto", "0", "1"],
        _text("Allow webhooks to call this machine; auto allows it without keys on loopback."),
    ] = "auto"
    # The pipeline on Spark, and the archive that it keeps.
    pipeline: Annotated[Literal["auto", "off"], _text("Run the Spark pipeline when there is work.")] = "auto"
    pipeline_priority: Annotated[
        Literal["idle", "low", "normal"],
        _text("CPU share of the pipeline: idle time only, a small share, or the same as the server."),
    ] = "idle"
    pipeline_poll_ms: Annotated[
        int, _number("Interval at which a running pipeline looks for sealed segments.", 100)
    ] = 5_000
    pipeline_idle_ms: Annotated[int, _number("Idle time after which the pipeline process ends.", 0)] = 60_000
    pipeline_url: Annotated[
        str | None,
        _text("URL of this server for Spark tasks on machines that do not have the data folder."),
    ] = None
    search_families: Annotated[
        Literal["auto", "off"],
        _text("Build index files for streams with a search config or a routing key."),
    ] = "auto"
    search_cache_bytes: Annotated[int, _number("Local cache of index files of an object store.")] = 4 * GIB
    search_erase_ms: Annotated[
        int, _number("Time deleted values may stay in index files, where no query shows them.")
    ] = 86_400_000
    archive: Annotated[_Switch, _text("Archive sealed records as Parquet.")] = "0"
    archive_dir: Annotated[
        str | None, _text("Archive: folder or object store URL; unset is archive in the data folder.")
    ] = None
    archive_erase_ms: Annotated[
        int, _number("Time deleted records may stay in archive files, where no reader sees them.")
    ] = 86_400_000
    archive_grace_ms: Annotated[
        int, _number("Time replaced archive files stay for readers that have begun to read them.")
    ] = 600_000
    archive_keep_snapshots_ms: Annotated[
        int, _number("Time a snapshot of the archive table is kept after it was replaced, and the files that it names.")
    ] = 600_000
    archive_catalog: Annotated[
        str | None,
        _text("Catalog of pyiceberg for the archive table; unset is the archive folder."),
    ] = None
    archive_table: Annotated[str, _text("Name of the archive table in the catalog.")] = "topics.records"
    archive_typed: Annotated[
        str | None,
        _text("Streams with a schema that get a table with typed columns: globs separated by commas."),
    ] = None
    archive_file_bytes: Annotated[int, _number("Target size of archive files.", MIB)] = 128 * MIB
    archive_retention_ms: Annotated[int, _number("Retention of archived records; 0 is forever.")] = 0
    spark_master: Annotated[str, _text("Spark master: local[*], spark://..., k8s://... or yarn.")] = "local[*]"
    spark_remote: Annotated[str | None, _text("Spark Connect server, sc://...; overrides the master.")] = None
    spark_memory: Annotated[str, _text("Memory of local Spark, such as 1g.")] = "1g"
    spark_conf: Annotated[str | None, _text("File with Spark settings in the format of spark-defaults.conf.")] = None

    log_format: Annotated[
        Literal["auto", "human", "json"],
        _text("Log format; auto is human on a terminal, else json."),
    ] = "auto"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _text("Lowest log level written.")] = "info"
    tracing: Annotated[
        Literal["off", "pass", "export"],
        _text("Trace context: ignored, propagated to answers and webhooks, or also exported as spans."),
    ] = "pass"
    otel_endpoint: Annotated[str, _text("OTLP/HTTP endpoint for spans; needs the extra otel.")] = (
        "http://127.0.0.1:4318/v1/traces"
    )
    otel_sample_percent: Annotated[int, _number("Percentage of requests without a trace that begin one.", 0, 100)] = 100
    access_log: Annotated[_Switch, _text("Log every answer.")] = "0"

    @classmethod
    def from_env(cls, env: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Self:
        """Reads the variables of `env`; `overrides` (by setting name, None for not given) win over them.

        Raises `SettingsError`.
        """
        flags = {name: given for name, given in (overrides or {}).items() if given is not None}
        unknown = flags.keys() - {setting.name for setting in SETTINGS}
        if unknown:
            raise SettingsError(f"unknown setting: {', '.join(sorted(unknown))}")
        return cls(**{**_read_layer(_given_in(env), from_env=True), **_read_layer(flags, from_env=False)})

    @classmethod
    def given(cls, env: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> frozenset[str]:
        """The names of the settings that `from_env` would not take from the defaults."""
        flags = {name for name, given in (overrides or {}).items() if given is not None}
        return frozenset(flags | _given_in(env).keys())


def _given_in(env: Mapping[str, str]) -> dict[str, object]:
    values = {setting.name: env.get(setting.env, "").strip() for setting in SETTINGS}
    return {name: text for name, text in values.items() if text}


def _read_layer(given: dict[str, object], *, from_env: bool) -> dict[str, Any]:
    """Checks what one source gave. The sources are read apart so that a host:port replaces the port of the same source
    and of lower sources, never the port of a higher one.
    """
    values = dict(given)
    sources = {setting.name: setting.env if from_env else setting.flag for setting in SETTINGS}
    host = values.get("host")
    if isinstance(host, str):
        values["host"], port = split_address(host, sources["host"])
        if port is not None:
            values["port"], sources["port"] = port, f"the port of {sources['host']}"
    if from_env:
        _forgive(values)
    return {
        setting.name: read_value(setting, values[setting.name], sources[setting.name])
        for setting in SETTINGS
        if setting.name in values
    }


def _forgive(values: dict[str, object]) -> None:
    """Two variables take values that others refuse, because deployments rely on it: a shard count that is not a number
    means the default, and a segment without records means one of a single record.
    """
    if as_integer(values.get("wal_shards")) is None:
        values.pop("wal_shards", None)
    if as_integer(values.get("segment_max_events")) == 0:
        values["segment_max_events"] = 1


def _describe(field: msgspec.structs.FieldInfo) -> Setting:
    declared, meta = get_args(field.type)
    default: Value = field.default
    choices = get_args(declared) if isinstance(default, str) else ()
    return Setting(
        name=field.name,
        kind="integer" if declared is int else "choice" if choices else "text",
        default=default,
        minimum=meta.ge,
        maximum=meta.le,
        choices=choices,
        help=meta.description,
    )


def _in_order() -> tuple[msgspec.structs.FieldInfo, ...]:
    """The engine's last: most of them are rarely touched."""
    fields, inherited = msgspec.structs.fields(Settings), len(msgspec.structs.fields(EngineSettings))
    return (*fields[inherited:], *fields[:inherited])


SETTINGS: tuple[Setting, ...] = tuple(map(_describe, _in_order()))
