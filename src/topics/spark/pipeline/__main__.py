"""`python -m topics.spark.pipeline`: the worker process that a server starts for the pipeline.

The server has priority over it, so the process lowers its priority first, before the imports, which alone take a
second of processor time.
"""

import os
import sys

from topics.model.settings import Settings
from topics.system.process import step_back


def start() -> int:
    step_back(Settings.from_env(os.environ).pipeline_priority)
    from topics.spark.pipeline.pipeline_worker import main  # noqa: PLC0415 - after the priority is lowered

    return main()


if __name__ == "__main__":
    code = start()
    sys.stdout.flush()
    # Spark's threads would delay a normal exit; the Java process ends when the pipes of this process close.
    os._exit(code)
