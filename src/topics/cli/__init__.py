"""The command line: one command a file, each a function that returns its exit code.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the command found damage, or the machine would not let it work |
| 2 | the command line or a setting is wrong |
| 3 | another process owns the data folder |
"""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from topics import __version__
from topics.config.settings import SettingsError
from topics.core.errors import FolderBusyError, TopicsError

__all__ = ["main"]

app = App(
    name="topics",
    help="A durable event engine: topics, routers and queues on one crash-safe log.",
    version=__version__,
    result_action="return_value",
)
# A command is imported when it is used, so that one which only looks at files does not load the server. Its help stands
# here for the same reason: listing the commands imports none of them.
app.command(
    "topics.cli.serve:serve",
    help="Run the server.\n\nEvery setting is also an environment variable; a flag beats the variable.",
)
app.command("topics.cli.version:version", help="Print the version.")
app.command("topics.cli.verify:verify", help="Look for damage in a data folder, changing nothing.")
app.command("topics.cli.repair:repair", help="Mend a damaged data folder.")
app.command("topics.cli.transfer:export", help="Write a topic's records to Parquet or JSON lines.")
app.command("topics.cli.transfer:import_", name="import", help="Append records from Parquet or JSON lines to a topic.")

pipeline = App(name="pipeline", help="Run the pipeline by hand, or see where it stands.")
pipeline.command("topics.cli.pipeline:run", help="Archive everything that is sealed, then end.")
pipeline.command("topics.cli.pipeline:status", help="Print where the pipeline of a data folder stands.")
pipeline.command("topics.cli.pipeline:zip_", name="zip", help="Write the package to a file for spark-submit.")
app.command(pipeline)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `arguments` are those of the process unless given.

    What an operator can mend is one sentence on standard error. Anything else is a bug and keeps its traceback.
    """
    try:
        result = app(sys.argv[1:] if arguments is None else arguments, exit_on_error=False)
    except CycloptsError:  # It has already been explained on standard error.
        return 2
    except SettingsError as error:
        return _explain(error, 2)
    except FolderBusyError as error:
        return _explain(error, 3)
    except (TopicsError, OSError) as error:
        return _explain(error, 1)
    return result if isinstance(result, int) else 0


def _explain(error: Exception, code: int) -> int:
    print(f"topics: {error}", file=sys.stderr)
    return code
