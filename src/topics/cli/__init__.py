"""Command line interface: one module for each command group, one function for each command.

A command returns its exit code.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the command found damage, was refused, or failed on this machine |
| 2 | the command line or a setting is wrong |
| 3 | another process owns the data folder |
| 4 | no server answers, or it cannot take requests now |
| 130 | interrupted |
| 141 | the reader of the output closed the pipe |
"""

import os
import sys
from collections.abc import Mapping, Sequence

from cyclopts import App, Group

from topics.cli.failures import INTERRUPTED, PIPE_CLOSED, advice, explained, one_line, strangers
from topics_protocol import __version__

__all__ = ["main"]

_SERVER, _FOLDER, _OTHER = (Group.create_ordered(name) for name in ("Use a server", "Run a server", "Other"))

app = App(
    name="topics",
    help="A durable event engine: topics, routers and queues on one crash-safe log.",
    version=f"topics {__version__}",
    result_action="return_value",
)
app["--help"].group = app["--version"].group = _OTHER

# Commands whose name is a builtin have a function with an underscore.
_FUNCTIONS = {"list": "list_", "set": "set_", "zip": "zip_"}


def _group(name: str, help: str, group: Group, commands: Mapping[str, str]) -> None:
    """Add a command group. Command `ls` of group `queue` is the function `ls` of the module `topics.cli.queue`."""
    word = App(name=name, help=help, group=group)
    for command, line in commands.items():
        word.command(f"topics.cli.{name}:{_FUNCTIONS.get(command, command)}", name=command, help=line)
    app.command(word)


# Commands are imported when they are used, so that a command on files does not load the server. Their help is here for
# the same reason: listing the commands imports none of them.
for _name, _help in {
    "ls": "List topics.",
    "show": "Show the state and the config of a topic.",
    "create": "Create a topic.",
    "set": "Change the config of a topic.",
    "rm": "Delete topics and their records.",
    "append": "Append records to a topic.",
    "read": "Print the records of a topic.",
    "tail": "Print the last records of a topic, and follow it with -f.",
    "delete": "Delete records of a topic permanently.",
    "fence": "Show or set the fence token of a topic.",
}.items():
    app.command(f"topics.cli.topic:{_FUNCTIONS.get(_name, _name)}", name=_name, help=_help, group=_SERVER)
_group(
    "queue",
    "Manage queues: jobs, leases and dead letters.",
    _SERVER,
    {
        "ls": "List queues with their job counts.",
        "claim": "Claim jobs: lease them to a worker.",
        "ack": "Acknowledge jobs as done.",
        "result": "Show the result of a job.",
        "nack": "Release jobs for another attempt.",
        "extend": "Extend the leases of jobs.",
        "leases": "List the leases of a queue.",
        "redrive": "Move dead letters back into a queue.",
        "jobs": "List the jobs of a queue in one state.",
        "retry": "Move one dead letter back into its queue.",
        "cancel": "Delete a job of a queue.",
        "promote": "Make a delayed job ready now.",
        "release": "End the lease of a job.",
        "pause": "Stop handing out jobs of a queue.",
        "resume": "Hand out jobs of a paused queue again.",
    },
)
_group(
    "schedule",
    "Manage schedules: jobs that the server appends at due times.",
    _SERVER,
    {
        "ls": "List schedules with their next due time.",
        "show": "Show the definition, the last and the next run of a schedule.",
        "put": "Create or change a schedule.",
        "pause": "Pause schedules.",
        "resume": "Resume paused schedules.",
        "rm": "Delete schedules and keep their jobs.",
    },
)
_group(
    "consumer",
    "Manage consumers: cursors that the server stores.",
    _SERVER,
    {
        "ls": "List consumers with their lag.",
        "show": "Show the cursor, the lag and the last commit of a consumer.",
        "read": "Print the records after the committed cursor.",
        "commit": "Commit a cursor, and create a missing consumer.",
        "reset": "Move a cursor back or forward.",
        "rm": "Delete consumers and their cursors.",
    },
)
_group(
    "router",
    "Manage routers, which copy the records of one topic into another.",
    _SERVER,
    {
        "ls": "List routers.",
        "show": "Show the config and the progress of a router.",
        "create": "Create or change a router.",
        "rm": "Delete a router and keep its copies.",
    },
)
_group(
    "stream",
    "Manage streams of the Durable Streams protocol at /v1.",
    _SERVER,
    {
        "ls": "List streams.",
        "show": "Show the state, the schema and the storage of a stream.",
        "create": "Create a stream.",
        "append": "Append to a stream.",
        "read": "Print the entries of a stream.",
        "tail": "Follow a stream: print new entries.",
        "close": "Close a stream for appends.",
        "rm": "Delete a stream.",
        "keys": "List the routing keys of a stream.",
        "profile": "Show or set the profile of a stream.",
    },
)
_group(
    "schema",
    "Manage the schema of a stream and its versions.",
    _SERVER,
    {
        "show": "Show the schema registry of a stream.",
        "set": "Set the first schema, the routing key or the search description.",
        "evolve": "Evolve a stream to the next schema version, with a lens (migration).",
        "infer": "Propose search fields from the newest entries.",
        "preview": "Preview an evolution on the newest entries.",
    },
)
app.command("topics.cli.search:search", help="Search the entries of one or more streams.", group=_SERVER)
app.command("topics.cli.search:aggregate", help="Aggregate the entries of a stream.", group=_SERVER)
app.command("topics.cli.transfer:export", help="Export the records of a topic to a file.", group=_SERVER)
app.command(
    "topics.cli.transfer:import_", name="import", help="Import the records of a file into a topic.", group=_SERVER
)
app.command("topics.cli.monitor:top", help="Monitor topics, rates, queues and backpressure.", group=_SERVER)
app.command("topics.cli.monitor:bench", help="Run a short benchmark against a server.", group=_SERVER)
_group(
    "context",
    "Manage contexts: named servers in a config file.",
    _SERVER,
    {
        "ls": "List contexts.",
        "use": "Select the current context.",
        "set": "Add or change a context.",
        "rm": "Remove a context.",
    },
)
app.command(
    "topics.cli.serve:serve",
    help="Run the server.\n\nEvery setting is also an environment variable; flags take precedence.",
    group=_FOLDER,
)
app.command("topics.cli.data_folder:verify", help="Check a data folder for damage without changing it.", group=_FOLDER)
app.command("topics.cli.data_folder:repair", help="Repair a damaged data folder.", group=_FOLDER)
_group(
    "backup",
    "Create, verify, prune and restore backups.",
    _FOLDER,
    {
        "create": "Create a backup of a running server.",
        "list": "List backups.",
        "verify": "Verify the checksums of backups.",
        "prune": "Remove old backups.",
        "restore": "Restore a backup into a new data folder.",
    },
)
app.command("topics.cli.failover:status", help="Show the role, term and lag of servers.", group=_SERVER)
app.command("topics.cli.failover:primary", help="Show the primary of a backup location.", group=_FOLDER)
app.command("topics.cli.failover:promote", help="End the primary's lease: a standby takes over.", group=_FOLDER)
app.command("topics.cli.backup:restore", help="Restore a backup; the same as backup restore.", group=_FOLDER)
_group(
    "key",
    "Manage the API keys in a server's key file.",
    _FOLDER,
    {
        "create": "Create a key and print its secret once.",
        "list": "List keys with their scopes and prefixes.",
        "revoke": "Revoke a key.",
    },
)
_group(
    "pipeline",
    "Run the Spark pipeline, control that of a server, or show its status.",
    _FOLDER,
    {
        "run": "Archive all sealed records and exit.",
        "rebuild": "Request new index files of a stream.",
        "compact": "Request a rewrite of files with deleted records.",
        "erase": "Request the same, and remove the replaced files at once.",
        "backfill": "Request a check of every topic, including quarantined ones.",
        "pause": "Stop the pipeline of the server.",
        "resume": "Resume the pipeline of the server.",
        "status": "Show the pipeline status of a data folder.",
        "zip": "Write the package to a zip file for spark-submit.",
    },
)
_group(
    "archive",
    "Check and repair the archive of a data folder.",
    _FOLDER,
    {
        "verify": "Check the archive against its ledger without changing it.",
        "repair": "Repair the archive and its tables.",
    },
)
app.command("topics.cli.info:completion", help="Print a completion script for a shell.", group=_OTHER)
app.command("topics.cli.info:version", help="Print the version.", group=_OTHER)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `arguments` default to those of the process.

    Expected errors are one sentence on standard error. Anything else is a bug and keeps its traceback.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        given = ["version"]  # The same result without the import time of the help.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A shell can start a program with these closed.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if given[:1] != ["serve"]:  # `serve` logs them.
        for stranger, meant in strangers(os.environ):
            print(f"topics: {advice(stranger, meant)}", file=sys.stderr)
    try:
        result = app(given, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The pipe is closed, and the interpreter must not flush to it on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        reported = explained(error, given[0] if given else "")
        if reported is None:
            raise
        sentence, code = reported
        print(f"topics: {one_line(sentence)}", file=sys.stderr)
        return code
    return result if isinstance(result, int) else 0
