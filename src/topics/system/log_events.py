"""The reference of log events: every warning and error that the product logs, with the action of an operator."""

from typing import NamedTuple


class LogEvent(NamedTuple):
    """One or several events with the same action."""

    level: str
    events: tuple[str, ...]
    action: str


SERVER_EVENTS = (
    LogEvent(
        "warning",
        ("AUTHENTICATION IS DISABLED: any client that can reach this address has full access",),
        "restrict access, or set keys",
    ),
    LogEvent(
        "warning",
        ("keys on the command line are visible to all users: set TOPICS_API_KEYS instead",),
        "use the environment or a key file",
    ),
    LogEvent(
        "warning",
        ("unknown variable",),
        "a `TOPICS_` variable that is not a setting is ignored; `did_you_mean` has the closest name",
    ),
    LogEvent(
        "error",
        ("key file reload failed",),
        "repair the file (see `error`); the keys stay as they were",
    ),
    LogEvent(
        "error",
        ("certificate reload failed",),
        "repair the files (see `error`) and send SIGHUP; the old certificate stays in use",
    ),
    LogEvent(
        "error",
        ("audit log write failed",),
        "see `error`; retried every second, lines may be lost",
    ),
    LogEvent(
        "warning",
        ("torn log tail skipped",),
        "none: normal after a crash",
    ),
    LogEvent(
        "warning",
        ("stopped during recovery",),
        "none: the next start replays again",
    ),
    LogEvent(
        "warning",
        ("uploads cut off",),
        "none: request bodies were not complete within `drain_ms`",
    ),
    LogEvent(
        "warning",
        ("connections closed at shutdown",),
        "none: clients had not finished within `drain_ms`",
    ),
    LogEvent(
        "warning",
        ("file descriptor limit reduces connections",),
        "raise the hard limit, or accept `connections_max`",
    ),
    LogEvent(
        "warning",
        (
            "failed topic creation skipped",
            "failed router creation skipped",
        ),
        "none: the creator got an error, and the name is used by a later one",
    ),
    LogEvent(
        "warning",
        ("router blocked",),
        "see `why`: a damaged source segment, or a destination that refuses; retried every second",
    ),
    LogEvent(
        "warning",
        ("dead-letter move failed",),
        "see `error`: make room in the dead-letter topic; the jobs stay in their queue",
    ),
    LogEvent(
        "warning",
        ("backpressure level changed",),
        "see backpressure",
    ),
    LogEvent(
        "error",
        ("data folder vanished",),
        (
            "the folder was removed, moved or replaced while the server runs, so it refuses writes: put it back"
            " and restart"
        ),
    ),
    LogEvent(
        "error",
        ("disk full",),
        "see full disk",
    ),
    LogEvent(
        "warning",
        ("disk has space again",),
        "none",
    ),
    LogEvent(
        "error",
        ("disk reserve failed",),
        "see `error`: the disk may be broken",
    ),
    LogEvent(
        "warning",
        (
            "log shard refuses writes temporarily",
            "log sync delayed",
        ),
        "none once; if it repeats, `error` names the missing resource",
    ),
    LogEvent(
        "warning",
        ("log shard accepts writes again",),
        "none",
    ),
    LogEvent(
        "error",
        ("log shard is read-only",),
        "see failed disk",
    ),
    LogEvent(
        "error",
        ("log shard thread failed",),
        "report the bug; the shard is read-only until a restart",
    ),
    LogEvent(
        "error",
        ("segment write failed",),
        "free space or repair the disk; the records stay in memory, retried every second",
    ),
    LogEvent(
        "error",
        ("checkpoint failed",),
        "the same; the log grows until one succeeds",
    ),
    LogEvent(
        "error",
        ("delete flags failed: damaged segment",),
        "see damaged data; deletes stay in effect",
    ),
    LogEvent(
        "error",
        ("topic delivery failed",),
        "see damaged data; watchers got an error",
    ),
    LogEvent(
        "error",
        ("move to the cold tier failed",),
        "check the cold folder or object store; retried",
    ),
    LogEvent(
        "error",
        ("unknown topic in the object store",),
        "two data folders share a prefix, or an old copy of the folder is in use: run `topics verify`",
    ),
    LogEvent(
        "warning",
        ("object store unavailable at start",),
        "check the object store",
    ),
    LogEvent(
        "info",
        ("object store cleanup failed",),
        "none: retried",
    ),
    LogEvent(
        "error",
        ("backup failed",),
        "see `error`; earlier backups are unchanged, scheduled ones are retried after a minute",
    ),
    LogEvent(
        "warning",
        ("backup cleanup failed",),
        "none: the backup is complete, removal of old files is retried with the next one",
    ),
    LogEvent(
        "warning",
        ("backups have another history; starting a new lineage",),
        "none after a restore; otherwise another server uses a copy of the folder",
    ),
    LogEvent(
        "warning",
        ("lease renewal failed",),
        "check the backup storage: writes are refused after `left_ms`",
    ),
    LogEvent(
        "error",
        ("primary lease lost",),
        "none: another server took over, and this process ends",
    ),
    LogEvent(
        "info",
        ("following the primary",),
        "none: this standby restored a backup and serves reads",
    ),
    LogEvent(
        "info",
        ("standby restores again",),
        "none: the primary was restarted or replaced; often: see `why`",
    ),
    LogEvent(
        "warning",
        ("standby folder kept",),
        "delete `folder` if it is in the way",
    ),
    LogEvent(
        "warning",
        ("standby cannot follow",),
        "see `error`; retried, see `topics_standby_lag_ms`",
    ),
    LogEvent(
        "warning",
        ("took over", "old data folder set aside", "unshipped log set aside", "unshipped log unknown"),
        "find out why the last primary failed",
    ),
    LogEvent(
        "warning",
        ("log shipping failed",),
        "see `error`; retried, see `topics_backup_lag_ms`",
    ),
    LogEvent(
        "warning",
        ("log for the next backup dropped: too large",),
        ("the storage was unreachable, or `backup_log_bytes` is small: no point-in-time restore since the last backup"),
    ),
    LogEvent(
        "warning",
        ("search process ended",),
        "none: restarted by the next search. If it repeats with `exit_status` -9, lower `search_memory_bytes`",
    ),
    LogEvent(
        "warning",
        ("index manifest cannot be read",),
        "see `error`; searches scan instead",
    ),
    LogEvent(
        "error",
        ("index manifest cannot be read",),
        "see `error`; searches scan instead, the next run of the pipeline rebuilds the index files",
    ),
    LogEvent(
        "error",
        ("index file cannot be read",),
        "see `error`; searches scan instead, `topics pipeline rebuild` builds it again",
    ),
    LogEvent(
        "warning",
        ("index file cannot be fetched",),
        "see `error`; retried after 5 seconds; if it is missing, `topics pipeline rebuild`",
    ),
    LogEvent(
        "warning",
        ("index file is larger than the cache",),
        "raise `search_cache_bytes`; searches scan instead",
    ),
    LogEvent(
        "warning",
        ("stream uses the name of a system stream",),
        "delete the stream `__registry__` or `__stream_metrics__` of an earlier version, and restart",
    ),
    LogEvent(
        "warning",
        (
            "stream registry write failed",
            "stream registry read failed",
        ),
        "see `error`; retried",
    ),
    LogEvent(
        "error",
        ("stream registry entries refused",),
        "report it; a restart adds the missing entries",
    ),
    LogEvent(
        "warning",
        ("webhook failed",),
        "see `error`: receiver, certificate (`streams_webhook_ca_file`) or address; retried",
    ),
    LogEvent(
        "warning",
        ("many deletes wait for the archive",),
        (
            "the pipeline does not run or fails, see `GET /v0/pipeline`; `bytes` are in memory and in every "
            "snapshot of `topic`"
        ),
    ),
    LogEvent(
        "error",
        ("backup lineage cannot be read",),
        "`backup/lineage` is damaged; the next backup starts a new lineage",
    ),
    LogEvent(
        "error",
        ("log for the next backup dropped: damaged note",),
        "`backup/log/run` is damaged; moments between the last backup and the next one cannot be restored",
    ),
    LogEvent(
        "error",
        ("confirmation of the archive cannot be read",),
        "`pipeline/seen` is damaged; deletes are kept until the pipeline confirms them again",
    ),
    LogEvent(
        "warning",
        ("deletes kept for a disabled archive",),
        "turn `archive` on, or remove the archive and the folder `pipeline` while the server is stopped",
    ),
    LogEvent(
        "error",
        (
            "housekeeping failed",
            "background job failed",
            "commit callback failed",
            "queue timer failed",
            "commit answers failed",
            "answer failed",
            "publish answer failed",
            "publish failed",
            "request failed",
            "handler failed",
            "request task failed",
            "scheduler task failed",
            "request parsing failed",
            "HTTP/2 frame parsing failed",
            "request admission failed",
            "error rendering failed",
            "stream handler failed",
            "disconnect handler failed",
            "backpressure measurement failed",
            "watcher failed",
            "schedule failed",
            "transaction publish failed",
            "delayed publish failed",
            "WebSocket receiver failed",
            "live connection failed",
            "live delivery failed",
        ),
        "a bug: report it with the traceback",
    ),
    LogEvent(
        "warning",
        ("scheduled job failed",),
        "the jobs of a due time could not be appended; it is tried again every 1 to 60 seconds",
    ),
    LogEvent(
        "info",
        ("schedules deleted with their topic",),
        "the topic of so many schedules was deleted",
    ),
    LogEvent(
        "warning",
        ("records of a consumer evicted",),
        "a cap or the age limit of retain_for_consumers removed records that the consumer had not committed",
    ),
)
"""Events of a server."""

PIPELINE_EVENTS = (
    LogEvent(
        "warning",
        ("the pipeline cannot run",),
        "install what it names, or set `pipeline` to `off`",
    ),
    LogEvent(
        "warning",
        ("another process has the pipeline",),
        "none if you run it by hand; retried",
    ),
    LogEvent(
        "error",
        (
            "the pipeline failed",
            "the pipeline's process ended badly; it will be started again",
            "the pipeline's process could not be started",
        ),
        "see the lines before; restarted with delays of up to five minutes",
    ),
    LogEvent(
        "warning",
        ("a pipeline job failed and is taken apart",),
        "none: the failing topic is named next",
    ),
    LogEvent(
        "error",
        ("a request to the pipeline cannot be read",),
        "its file was damaged and is removed; make the request again",
    ),
    LogEvent(
        "warning",
        ("index files are not rebuilt",),
        "see `stream` and `reason`: there is nothing to rebuild",
    ),
    LogEvent(
        "error",
        ("a topic is left out of the pipeline for now",),
        "see `reason` and `topics verify`; retried",
    ),
    LogEvent(
        "error",
        ("a product sits this round out",),
        "repair what `error` names; other products continue",
    ),
    LogEvent(
        "warning",
        ("the cold tier of companions is left alone for a minute",),
        "see `why`: check the cold folder or object store; retried",
    ),
    LogEvent(
        "warning",
        ("the archive is begun anew: the log has another history",),
        "none after a restore; never give a drill the real archive",
    ),
    LogEvent(
        "warning",
        (
            "the archive's table is of another layout or place and is made again",
            "the archive's table cannot be read and is made again",
        ),
        "none: rebuilt from the archive's ledger",
    ),
    LogEvent(
        "warning",
        ("a tag of the archive's table is lost",),
        "the table was rebuilt, and the snapshot of `tags` cannot be read (`why`); set the tag again on another one",
    ),
    LogEvent(
        "error",
        ("the pipeline's settings are refused",),
        ("`error` names the setting: leave it out to use the recorded value, or start the server with `--reconfigure`"),
    ),
    LogEvent(
        "error",
        ("files of the archive are missing",),
        (
            "`rebuilt` of the `files` are copied from the log again; restore the others from a copy, or accept "
            "their loss with `topics archive repair`"
        ),
    ),
    LogEvent(
        "warning",
        ("a delete file of the archive's table is made again",),
        "none: the records it hid are hidden again",
    ),
    LogEvent(
        "error",
        ("a file of the archive cannot be read",),
        "restore `path` from a copy; until then the table leaves it out",
    ),
    LogEvent(
        "warning",
        ("consumer commit failed",),
        "the query continues; the lag of `consumer` is out of date until a commit succeeds",
    ),
    LogEvent(
        "warning",
        ("no topic is there to be read",),
        "a query of the connector matches no topic",
    ),
    LogEvent(
        "warning",
        ("the archive has nothing of a topic",),
        "a query with the option `archive`",
    ),
    LogEvent(
        "warning",
        ("records were lost before they were read",),
        "a query of the connector that continues after loss; the range is in the line",
    ),
)
"""Events of the pipeline and the connector."""

CLIENT_EVENTS = (
    LogEvent(
        "warning",
        ("%s failed (%d), next try in %.2g s: %s",),
        "the server is unreachable or busy; logged at the second failure in a row, the fourth, the eighth and so on",
    ),
    LogEvent(
        "warning",
        ("topic %s: job %d failed in delivery %d: %r",),
        "the job is returned and delivered again; see its traceback",
    ),
    LogEvent(
        "warning",
        ("topic %s: jobs %s ended after their leases",),
        "the jobs were done twice: use a longer lease",
    ),
    LogEvent(
        "warning",
        (
            "topic %s: extending the leases of %s failed: %s",
            "topic %s: reporting the end of jobs %s failed: %s",
            "topic %s: worker %s is waiting for the server: %s",
        ),
        "none: the worker continues, unreported jobs are delivered again",
    ),
)
"""Events of the Python client."""
