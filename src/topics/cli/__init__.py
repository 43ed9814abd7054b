"""The command line: one module a command group, one function a command, which returns its exit code.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the command found damage, was refused, or the machine would not let it work |
| 2 | the command line or a setting is wrong |
| 3 | another process owns the data folder |
| 4 | no server answers, or it cannot take requests now |
| 130 | interrupted |
| 141 | whoever read the output has gone |
"""

import os
import sys
from collections.abc import Mapping, Sequence

from cyclopts import App, Group

from topics.cli.failures import INTERRUPTED, PIPE_CLOSED, advice, explained, one_line, strangers
from topics_protocol import __version__

__all__ = ["main"]

_SERVER, _FOLDER, _OTHER = (Group.create_ordered(name) for name in ("Talk to a server", "Run and keep one", "More"))

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


# A command is imported when it is used, so that one which only looks at files does not load the server. Its help stands
# here for the same reason: listing the commands imports none of them.
for _name, _help in {
    "ls": "List topics.",
    "show": "Show where a topic stands, and its config.",
    "create": "Create a topic.",
    "set": "Change the config of a topic.",
    "rm": "Delete topics with everything in them.",
    "append": "Append records to a topic.",
    "read": "Print the records of a topic, and end.",
    "tail": "Print the last records of a topic, and follow it.",
    "delete": "Delete records of a topic for good.",
}.items():
    app.command(f"topics.cli.topic:{_FUNCTIONS.get(_name, _name)}", name=_name, help=_help, group=_SERVER)
_group(
    "queue",
    "Queues: jobs, their leases, and what became of them.",
    _SERVER,
    {
        "ls": "List queues and their jobs.",
        "claim": "Lease jobs to a worker.",
        "ack": "Jobs are done.",
        "nack": "Give jobs back.",
        "extend": "Hold jobs for longer.",
        "leases": "List who holds which job.",
        "redrive": "Make dead letters jobs again.",
    },
)
_group(
    "router",
    "Routers: copies of one topic's records into another.",
    _SERVER,
    {
        "ls": "List routers.",
        "show": "Show what a router does, and how far it got.",
        "create": "Create a router, or change what it does.",
        "rm": "Delete a router; what it copied stays.",
    },
)
_group(
    "stream",
    "Streams of the Durable Streams protocol at /v1.",
    _SERVER,
    {
        "ls": "List streams.",
        "show": "Show where a stream stands, and what it promises.",
        "create": "Create a stream.",
        "append": "Append to a stream.",
        "read": "Print what a stream holds, and end.",
        "tail": "Print what a stream holds, and follow it.",
        "close": "Close a stream: nothing more can be appended.",
        "rm": "Delete a stream.",
        "keys": "List the routing keys of a stream.",
        "profile": "Show what a stream is for, or say it.",
    },
)
_group(
    "schema",
    "What the entries of a stream look like, and how that changes.",
    _SERVER,
    {
        "show": "Show the registry of a stream.",
        "set": "Set the first schema, the routing key or what can be searched.",
        "evolve": "Lead a stream to the next version of its schema, with a lens.",
        "preview": "Show what an evolution would make of the newest entries.",
    },
)
app.command("topics.cli.search:search", help="Find entries of one stream or of several.", group=_SERVER)
app.command("topics.cli.search:aggregate", help="Add up entries of a stream.", group=_SERVER)
app.command("topics.cli.transfer:export", help="Write a topic's records to a file.", group=_SERVER)
app.command("topics.cli.transfer:import_", name="import", help="Append records of a file to a topic.", group=_SERVER)
app.command("topics.cli.monitor:top", help="Watch topics, rates, queues and pressure.", group=_SERVER)
app.command("topics.cli.monitor:bench", help="Measure your own server, briefly.", group=_SERVER)
_group(
    "context",
    "Servers by name, in a file of your own.",
    _SERVER,
    {
        "ls": "List the contexts.",
        "use": "Choose the server that commands talk to.",
        "set": "Add a context, or change it.",
        "rm": "Forget a context.",
    },
)
app.command(
    "topics.cli.serve:serve",
    help="Run the server.\n\nEvery setting is also an environment variable; a flag beats the variable.",
    group=_FOLDER,
)
app.command("topics.cli.data_folder:verify", help="Look for damage in a data folder, changing nothing.", group=_FOLDER)
app.command("topics.cli.data_folder:repair", help="Mend a damaged data folder.", group=_FOLDER)
_group(
    "backup",
    "Backups of a server, and the way back from them.",
    _FOLDER,
    {
        "create": "Take a backup of a running server.",
        "list": "List the backups there are.",
        "verify": "Read backups whole, and compare them with their checksums.",
        "prune": "Remove old backups.",
        "restore": "Make a data folder out of a backup.",
    },
)
_group(
    "key",
    "Keys of a server, in a file that it reads.",
    _FOLDER,
    {
        "create": "Make a key, and print its secret once.",
        "list": "List the keys and what they may do.",
        "revoke": "Take a key back.",
    },
)
_group(
    "pipeline",
    "Run the pipeline by hand, or see where it stands.",
    _FOLDER,
    {
        "run": "Archive everything that is sealed, then end.",
        "rebuild": "Have the indexes of a stream made again.",
        "status": "Print where the pipeline of a data folder stands.",
        "zip": "Write the package to a file for spark-submit.",
    },
)
app.command("topics.cli.info:completion", help="Print a script that completes commands in a shell.", group=_OTHER)
app.command("topics.cli.info:version", help="Print the version.", group=_OTHER)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `arguments` are those of the process unless given.

    What somebody can mend is one sentence on standard error. Anything else is a bug and keeps its traceback.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        given = ["version"]  # The same without the help's machinery, which takes longer to import than all the rest.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A shell can start a program with these closed; nothing below has to know that.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if given[:1] != ["serve"]:  # It puts them into its log.
        for stranger, meant in strangers(os.environ):
            print(f"topics: {advice(stranger, meant)}", file=sys.stderr)
    try:
        result = app(given, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nothing can be written any more, and the interpreter must not try it once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        told = explained(error, given[0] if given else "")
        if told is None:
            raise
        sentence, code = told
        print(f"topics: {one_line(sentence)}", file=sys.stderr)
        return code
    return result if isinstance(result, int) else 0
