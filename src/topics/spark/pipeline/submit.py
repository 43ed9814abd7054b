"""spark-submit entry point: one run of the pipeline on a cluster.

    spark-submit --master spark://host:7077 --py-files topics.zip path/to/submit.py

The settings come from the environment, the master from spark-submit. The data folder, the cold folder and the archive
must be reachable under the same paths on every machine. `topics pipeline zip` makes the zip file.
"""

import os
import sys
import threading

from topics.model.settings import Settings
from topics.spark.pipeline.pipeline_worker import (
    LazySpark,
    check_tracked,
    files_of,
    hold_pipeline,
    layout_of,
    make_pipeline,
    run_until_idle,
)
from topics.system.clock import SystemClock


def main() -> int:
    settings = Settings.from_env(os.environ, {"archive": "1"})
    fs, clock = files_of(settings), SystemClock()
    lock = hold_pipeline(fs, layout_of(settings), f"spark-submit, process {os.getpid()}")
    try:
        check_tracked(fs, layout_of(settings))
        pipeline = make_pipeline(settings, fs, LazySpark(settings, under_submit=True), clock)
        run_until_idle(pipeline, settings, clock, threading.Event().wait, once=True)
    finally:
        lock.release()
    print(f"{pipeline.status.records} records archived so far, {pipeline.status.lag_segments} segments behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
