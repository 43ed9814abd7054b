"""`python -m topics.spark.pipeline`: the process that a server starts for the pipeline.

The server comes first: a job that is a little slower harms nobody. So the process steps back before anything else, also
before it imports what it needs, which alone takes a second of the processor.
"""

import os
import sys

from topics.model.settings import Settings
from topics.system.process import step_back


def start() -> int:
    step_back(Settings.from_env(os.environ).pipeline_priority)
    from topics.spark.pipeline.pipeline_worker import main  # noqa: PLC0415 - only now

    return main()


if __name__ == "__main__":
    code = start()
    sys.stdout.flush()
    # Spark's threads would hold up a normal end; its own process ends when this one's pipes close.
    os._exit(code)
