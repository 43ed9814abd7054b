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
# `host:port`, with an IPv6 host in brackets because it has colons of its own.
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[^:]*))?", re.ASCII)


class SettingsError(ValueError):
    """A setting has a value that cannot be used. The text names the setting, the value and what is accepted."""


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
            return "a text that is not empty"
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
    wal_shards: Annotated[int, _number("Shards of the log; 0 is one per CPU, at most 8.", 0, 64)] = 0
    wal_file_bytes: Annotated[int, _number("Size at which a log file is closed.", 64 * KIB, 64 * GIB)] = 64 * MIB
    sync_interval_ms: Annotated[int, _number("Longest time class disk data stays unsynced.", 1, 86_400_000)] = 50
    commit_window_us: Annotated[int, _number("Longest wait for more writes to share one sync.")] = 500
    commit_queue_bytes: Annotated[int, _number("Bytes that may wait for a commit.", 1)] = 64 * MIB
    disk_reserve_seqs: Annotated[
        int, _number("Sequence numbers a topic may give out before the disk knows of it; a power cut skips them.", 1)
    ] = 65_536

    # Backups.
    backup_interval_ms: Annotated[int, _number("Time between backups that are taken by themselves; 0 is never.")] = 0
    backup_ship_ms: Annotated[
        int, _number("Longest time that the log behind a backup waits to be shipped there as well; 0 ships none.")
    ] = 10_000
    backup_keep: Annotated[int, _number("Backups that are kept, and up to an eighth more; 0 is all.")] = 0
    backup_log_bytes: Annotated[
        int, _number("Log that is kept for the next backup, so that every moment can be restored; 0 is none.")
    ] = 4 * GIB

    # Thresholds and measures of backpressure.
    pressure_lag_ms: Annotated[int, _number("Lag of the event loop at which pressure begins.", 1)] = 5
    pressure_commit_ms: Annotated[int, _number("Time of a commit at which pressure begins.", 1)] = 20
    pressure_coalesce_percent: Annotated[
        int, _number("Pressure from which deliveries are coalesced; 101 is never.", 1, 101)
    ] = 20
    pressure_widen_percent: Annotated[
        int, _number("Pressure from which commits wait longer for company; 101 is never.", 1, 101)
    ] = 40
    pressure_defer_percent: Annotated[
        int, _number("Pressure from which negative priorities and routers wait; 101 is never.", 1, 101)
    ] = 80
    pressure_refuse_percent: Annotated[
        int, _number("Pressure from which appends are refused; 101 is never.", 1, 101)
    ] = 95
    coalesce_max_ms: Annotated[int, _number("Longest distance between deliveries under pressure.")] = 20
    commit_window_max_us: Annotated[int, _number("Longest wait of commits for company under pressure.")] = 10_000

    # Sealed segments, and the memory that records use before and after they are sealed.
    segment_max_events: Annotated[int, _number("Records at which a segment is sealed; 0 counts as 1.", 1)] = 10_000
    segment_max_bytes: Annotated[int, _number("Bytes at which a segment is sealed.", 1, GIB)] = 64 * MIB
    segment_max_age_ms: Annotated[int, _number("Age at which a segment is sealed; 0 is never.")] = 3_600_000
    hot_retain_segments: Annotated[int, _number("Newest sealed segments of a topic that stay hot.")] = 4
    hot_retain_bytes: Annotated[int, _number("Hot bytes of a topic; 0 goes by count alone.")] = 0
    tail_memory_bytes: Annotated[
        int, _number("Unsealed payload of logged topics in memory; beyond it the largest tails are sealed early.", 1)
    ] = 128 * MIB
    awake_topics: Annotated[
        int,
        _number("Topics kept whole in memory; quiet ones beyond it are read from the snapshot when somebody asks."),
    ] = 10_000
    map_cache_bytes: Annotated[int, _number("Bytes of sealed segments that may be open at once.")] = 256 * MIB

    # Checkpoints.
    snapshot_interval_ms: Annotated[int, _number("Longest time between checkpoints.", 1)] = 60_000
    snapshot_wal_bytes: Annotated[int, _number("Log bytes after which a checkpoint is made.", 1)] = 256 * MIB
    snapshot_inline_bytes: Annotated[
        int, _number("A tail larger than this is sealed at a checkpoint instead of copied into it.")
    ] = 256 * KIB


class Settings(EngineSettings, frozen=True, kw_only=True):
    """The settings of one server, checked."""

    # Where it listens and where it keeps its data.
    host: Annotated[str, _text("Address to listen on; host:port or [IPv6]:port sets the port too.")] = "127.0.0.1"
    port: Annotated[int, _number("Port to listen on; 0 lets the system choose one.", 0, 65_535)] = 4000
    port_file: Annotated[str | None, _text("File that receives the bound host:port.")] = None
    data_dir: Annotated[str, _text("Folder of the log; one server at a time.")] = "./topics-data"
    shared_files: Annotated[
        _Switch, _text("Let other users of the machine read the data folder as far as the umask does.")
    ] = "0"
    cold_dir: Annotated[
        str | None, _text("Folder, or URL of an object store, that old sealed segments move to; unset keeps them.")
    ] = None
    cold_cache_bytes: Annotated[
        int, _number("Bytes of segments from an object store that are kept on the local disk.")
    ] = GIB

    backup_dir: Annotated[
        str | None, _text("Folder, or URL of an object store, that backups go to; several servers may share it.")
    ] = None

    full_disk_reserve_bytes: Annotated[
        int,
        _number(
            "Room kept back on the disk, so that deletes still work when it is full; 0 is none.", maximum=1024 * GIB
        ),
    ] = 32 * MIB

    tls_cert_file: Annotated[
        str | None, _text("PEM file with the certificate, and its chain, to serve https with; unset is http.")
    ] = None
    tls_key_file: Annotated[
        str | None, _text("PEM file with the key of the certificate; SIGHUP reads both files again.")
    ] = None
    http2: Annotated[_Switch, _text("Speak HTTP/2 with clients that begin with it; 0 is HTTP/1.1 alone.")] = "1"
    audit_file: Annotated[
        str | None, _text("File that receives a line for every refused or destructive call; SIGHUP opens it anew.")
    ] = None

    # Authentication.
    api_keys: Annotated[
        str | None, _text("Keys: secret[:scopes[:prefixes]], separated by commas; unset is no auth.")
    ] = None
    key_file: Annotated[
        str | None, _text("Key file, changed by topics key and loaded again when it changes; turns authentication on.")
    ] = None
    allow_insecure_no_auth: Annotated[_Switch, _text("Serve beyond this machine without keys.")] = "0"
    allowed_hosts: Annotated[
        str | None, _text("Hosts besides those of this machine that a server without keys is served under, or *.")
    ] = None
    cors_origins: Annotated[
        str | None, _text("Origins whose pages may read answers, such as https://app.example.com, or *.")
    ] = None
    trusted_proxies: Annotated[
        str | None, _text("Addresses or networks of proxies whose X-Forwarded-For is believed in the logs.")
    ] = None
    probe_auth: Annotated[_Switch, _text("Ask for a key on health and readiness, too.")] = "0"
    max_inflight_per_key: Annotated[int, _number("Requests of one key at the same time; 0 is no limit.")] = 1000
    max_connections: Annotated[
        int, _number("Most connections; fewer where the system allows the process too few descriptors.", 1)
    ] = 20_000
    max_unread_bytes: Annotated[
        int, _number("Most bytes of answers that clients have not read; the more, the shorter are reads.", 64 * KIB)
    ] = 256 * MIB
    drain_ms: Annotated[int, _number("How long a stopping server waits for requests to finish.")] = 10_000

    # Limits on what is stored and asked.
    max_topics: Annotated[int, _number("Most topics; 0 is no limit.")] = _LIMITS.max_topics
    max_routers: Annotated[int, _number("Most routers; 0 is no limit.")] = _LIMITS.max_routers
    max_total_bytes: Annotated[int, _number("Most live bytes of all topics; 0 is no limit.")] = _LIMITS.max_total_bytes
    max_topics_per_key: Annotated[
        int, _number("Most topics and streams under the prefixes of one key; 0 is no limit.")
    ] = _LIMITS.max_topics_per_key
    max_routers_per_key: Annotated[int, _number("Most routers under the prefixes of one key; 0 is no limit.")] = (
        _LIMITS.max_routers_per_key
    )
    max_bytes_per_key: Annotated[int, _number("Most live bytes under the prefixes of one key; 0 is no limit.")] = (
        _LIMITS.max_bytes_per_key
    )
    max_memory_bytes: Annotated[
        int,
        _number(
            "Most memory for ephemeral records, idempotency keys, producers, schemas and jobs with a history; "
            "0 is no limit."
        ),
    ] = _LIMITS.max_memory_bytes
    max_memory_bytes_per_key: Annotated[int, _number("The same under the prefixes of one key; 0 is no limit.")] = (
        _LIMITS.max_memory_bytes_per_key
    )
    max_fanout_bytes: Annotated[
        int, _number("Most bytes a second that routers copy from topics with more than 8 routers; 0 is no limit.")
    ] = _LIMITS.max_fanout_bytes
    max_fanout_bytes_per_key: Annotated[
        int, _number("The same for topics under the prefixes of one key; 0 is no limit.")
    ] = _LIMITS.max_fanout_bytes_per_key
    max_batch_records: Annotated[int, _number("Most records of one append.", 1)] = _LIMITS.max_batch_records
    max_record_bytes: Annotated[int, _number("Most bytes of one record.", 1)] = _LIMITS.max_record_bytes
    awake_us: Annotated[
        int,
        _number(
            "How long to look for the next request before sleeping, while they come densely; 0 is never.", 0, 10_000
        ),
    ] = 200
    max_body_bytes: Annotated[int, _number("Most bytes of one request body.", 1)] = 64 * MIB
    max_meta_bytes: Annotated[int, _number("Most bytes of one record's meta.", 0, MIB - 64)] = _LIMITS.max_meta_bytes
    max_meta_keys: Annotated[int, _number("Most keys of one record's meta.")] = _LIMITS.max_meta_keys
    max_tag_bytes: Annotated[int, _number("Most bytes of a tag.", 1, 640)] = _LIMITS.max_tag_bytes
    max_node_bytes: Annotated[int, _number("Most bytes of a node name.", 1, 640)] = _LIMITS.max_node_bytes
    max_idempotency_key_chars: Annotated[int, _number("Most characters of an idempotency key.", 1, 16_383)] = (
        _LIMITS.max_idempotency_key_chars
    )
    max_idempotency_keys: Annotated[
        int, _number("Most idempotency keys that a topic remembers within its window; 0 is no limit.")
    ] = _LIMITS.max_idempotency_keys
    max_claim: Annotated[int, _number("Most jobs of one claim, and seqs of one acknowledgement.", 1)] = (
        _LIMITS.max_claim
    )
    max_limit: Annotated[int, _number("Most records of one read.", 1)] = _LIMITS.max_limit
    max_batch_bytes: Annotated[int, _number("Most bytes of the records of one read.", 1)] = _LIMITS.max_batch_bytes

    strict_config: Annotated[
        _Switch, _text("Refuse a config with a field that does not exist, as ?strict=true does.")
    ] = "0"

    # Transactions.
    max_transactions: Annotated[int, _number("Most open transactions of one key; 0 is no limit.")] = (
        _LIMITS.max_transactions
    )
    max_transaction_ids: Annotated[
        int, _number("Most ids of transactions that are open or whose last commit is remembered.", 1)
    ] = _LIMITS.max_transaction_ids
    max_transaction_ids_per_key: Annotated[
        int, _number("The same for the keys with the same prefixes; 0 is no limit.")
    ] = _LIMITS.max_transaction_ids_per_key
    max_transaction_parts: Annotated[int, _number("Most parts of one transaction.", 1)] = _LIMITS.max_transaction_parts
    max_transaction_records: Annotated[int, _number("Most records of one transaction.", 1)] = (
        _LIMITS.max_transaction_records
    )
    max_transaction_bytes: Annotated[
        int, _number("Most bytes of the records of one transaction; its commit holds them in memory.", 1)
    ] = _LIMITS.max_transaction_bytes
    max_staged_bytes: Annotated[
        int, _number("Most bytes that all open transactions of one key have staged; 0 is no limit.")
    ] = _LIMITS.max_staged_bytes
    transaction_timeout_ms: Annotated[
        int, _number("Longest time that an open transaction may lie idle before it is aborted.", 1)
    ] = _LIMITS.transaction_timeout_ms
    transaction_retention_ms: Annotated[
        int, _number("How long the last commit of a transaction's id is remembered.", 1)
    ] = _LIMITS.transaction_retention_ms

    # Following topics live, by event stream or WebSocket.
    max_watch_sessions: Annotated[int, _number("Most watch sessions; 0 is no limit.")] = 10_000
    max_watch_sessions_per_key: Annotated[int, _number("The same for one key; 0 is no limit.")] = 1_000
    max_watch_topics: Annotated[int, _number("Most topics of one watch or subscription.", 1)] = 256
    max_sse_connections: Annotated[int, _number("Most event streams and WebSockets; 0 is no limit.")] = 10_000
    max_sse_connections_per_key: Annotated[int, _number("The same for one key; 0 is no limit.")] = 1_000
    watch_session_ttl_ms: Annotated[int, _number("How long a watch session lives without a stream.", 1)] = 300_000
    buffer_grace_ms: Annotated[
        int, _number("How long a follower may take nothing before a loss it meets counts as its own.")
    ] = 5_000
    slow_consumer_timeout_ms: Annotated[
        int, _number("How long a follower may take nothing before its connection ends.", 1)
    ] = 30_000
    test_min_heartbeat_ms: Annotated[int, _number("Shortest heartbeat that may be asked for; for tests.", 1, 1_000)] = (
        1_000
    )
    # Streams (/v1).
    streams_durability: Annotated[
        Literal["memory", "disk", "fsync"], _text("Class of the topics that /v1 creates.")
    ] = "fsync"
    streams_long_poll_ms: Annotated[int, _number("How long a live read of /v1 waits unless it says so.", 0)] = 3_000
    streams_long_poll_max_ms: Annotated[int, _number("The longest that a live read of /v1 may wait.", 0)] = 4_500
    search_stream_bytes: Annotated[
        int, _number("Bytes of a stream's newest entries that are searched in memory.", 64 * KIB)
    ] = 128 * MIB
    search_scan_bytes: Annotated[int, _number("Bytes of entries older than these that one query looks at.", 0)] = (
        512 * MIB
    )
    max_searches: Annotated[int, _number("Most searches that are answered at once; 0 is no limit.", 0)] = 256
    max_searches_per_key: Annotated[
        int, _number("The same for one key, or several with the same prefixes; 0 is no limit.", 0)
    ] = 32
    search_memory_bytes: Annotated[int, _number("Bytes that the indexes of all searched streams take.", 64 * KIB)] = (
        512 * MIB
    )
    streams_webhook_ca_file: Annotated[
        str | None, _text("PEM file of authorities that webhooks are trusted by besides the public ones.")
    ] = None
    max_subscriptions: Annotated[int, _number("Most subscriptions; 0 is no limit.")] = 10_000
    max_subscriptions_per_key: Annotated[
        int, _number("The same for one key, or several with the same prefixes; 0 is no limit.")
    ] = 1_000
    streams_immutable: Annotated[
        _Switch, _text("Let caches keep full chunks of streams for good; 0 is for those who erase.")
    ] = "1"
    streams_registry: Annotated[_Switch, _text("Write what becomes of streams to the stream __registry__.")] = "1"
    streams_metrics: Annotated[_Switch, _text("Write how the server is doing to the stream __stream_metrics__.")] = "1"
    streams_metrics_ms: Annotated[int, _number("How often that is written.", 100)] = 10_000
    streams_metrics_retention_ms: Annotated[int, _number("How long it is kept; 0 goes by size alone.")] = 604_800_000
    streams_webhook_loopback: Annotated[
        Literal["auto", "0", "1"],
        _text("Whether webhooks may call this machine itself; auto is only where there are no keys and no strangers."),
    ] = "auto"
    # The pipeline on Spark, and the archive that it keeps.
    pipeline: Annotated[
        Literal["auto", "off"], _text("Whether the server runs the pipeline when there is work for it.")
    ] = "auto"
    pipeline_priority: Annotated[
        Literal["idle", "low", "normal"],
        _text("What processor time the server's pipeline gets: what is left over, a small share, or as the server."),
    ] = "idle"
    pipeline_poll_ms: Annotated[int, _number("How often a running pipeline looks for new sealed work.", 100)] = 5_000
    pipeline_idle_ms: Annotated[int, _number("How long a pipeline without work stays before it ends.", 0)] = 60_000
    search_families: Annotated[
        Literal["auto", "off"],
        _text("Whether the pipeline makes indexes of what is sealed of streams that can be searched or have keys."),
    ] = "auto"
    search_cache_bytes: Annotated[
        int, _number("Bytes of index families from an object store that are kept on the local disk.")
    ] = 4 * GIB
    search_erase_ms: Annotated[
        int, _number("How long values of deleted entries, which nobody is shown, may stay in index families.")
    ] = 86_400_000
    archive: Annotated[_Switch, _text("Keep sealed records as Parquet.")] = "0"
    archive_dir: Annotated[
        str | None, _text("Folder of the archive, or URL of an object store; unset is archive in the data folder.")
    ] = None
    archive_erase_ms: Annotated[
        int, _number("How long deleted records, which nobody is shown, may stay in files of the archive.")
    ] = 86_400_000
    archive_grace_ms: Annotated[
        int, _number("Time replaced archive files stay for readers that have begun to read them.")
    ] = 600_000
    archive_keep_snapshots_ms: Annotated[
        int, _number("Time a snapshot of the archive table is kept after it was replaced, and the files that it names.")
    ] = 600_000
    archive_catalog: Annotated[
        str | None,
        _text("Catalog of pyiceberg's that the archive's table is registered in; unset is the archive's own folder."),
    ] = None
    archive_table: Annotated[str, _text("Name of the archive's table in that catalog.")] = "topics.records"
    archive_typed: Annotated[
        str | None,
        _text("Streams with a schema that get a table of their own with typed columns: globs, commas between."),
    ] = None
    archive_file_bytes: Annotated[int, _number("Size that files of the archive are brought to.", MIB)] = 128 * MIB
    archive_retention_ms: Annotated[int, _number("Age at which archived records are removed; 0 is never.")] = 0
    spark_master: Annotated[str, _text("Where Spark runs: local[*], spark://..., k8s://... or yarn.")] = "local[*]"
    spark_remote: Annotated[str | None, _text("Address of a Spark Connect server, sc://...; beats the master.")] = None
    spark_memory: Annotated[str, _text("Memory of an embedded Spark, such as 1g.")] = "1g"
    spark_conf: Annotated[str | None, _text("File with extra settings of Spark, as spark-defaults.conf.")] = None

    log_format: Annotated[
        Literal["auto", "human", "json"],
        _text("Log lines for people or programs; auto is human on a terminal, json otherwise."),
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _text("What is logged: this and everything worse.")
    ] = "info"
    tracing: Annotated[
        Literal["off", "pass", "export"],
        _text("Traces of callers: left alone, passed on to answers and webhooks, or also exported as spans."),
    ] = "pass"
    otel_endpoint: Annotated[str, _text("Where spans are sent, by OTLP over HTTP; needs the extra otel.")] = (
        "http://127.0.0.1:4318/v1/traces"
    )
    otel_sample_percent: Annotated[int, _number("Of 100 requests that bring no trace, how many begin one.", 0, 100)] = (
        100
    )
    access_log: Annotated[_Switch, _text("Log a line for every answer.")] = "0"

    @classmethod
    def from_env(cls, env: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Self:
        """Reads the variables of `env`; `overrides` (by setting name, None for not given) win over them.

        Raises `SettingsError`.
        """
        flags = {name: given for name, given in (overrides or {}).items() if given is not None}
        unknown = flags.keys() - {setting.name for setting in SETTINGS}
        if unknown:
            raise SettingsError(f"there is no setting {', '.join(sorted(unknown))}")
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
    """Checks what one source gave. The sources are read apart so that a host:port replaces the port of its own source
    and of those below it, and never the port of one above it.
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
    """Two variables take values that others refuse, because deployments rely on it: a shard count that is no number
    means the default, and a segment of no records means one of a single record.
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
