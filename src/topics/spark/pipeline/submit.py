"""spark-submit entry point: one run of the pipeline on a cluster.

    topics pipeline zip .
    spark-submit --master spark://host:7077 --py-files topics-<version>.zip submit.py

The settings come from the environment and from what is recorded with the data, the master from spark-submit. The data
folder, the cold folder and the archive must be reachable under the same paths on every machine. `topics pipeline zip`
writes the zip file and this one.
"""

import argparse
import os
import sys
import threading

from topics.model.errors import TopicsError
from topics.model.settings import Settings, SettingsError
from topics.spark.pipeline.pipeline_settings import names_of
from topics.spark.pipeline.pipeline_worker import LazySpark, RequestWorker, make_pipeline, open_run, run_until_idle
from topics.spark.pipeline.rounds import Pipeline
from topics.spark.pipeline.status import summary
from topics.system.clock import SystemClock


def main() -> int:
    settings = Settings.from_env(os.environ, {"archive": "1"})
    who, clock = f"spark-submit, process {os.getpid()}", SystemClock()
    problems: list[str] = []

    def note(text: str, is_problem: bool) -> None:
        print(text, file=sys.stderr)
        problems.extend([text] if is_problem else ())

    run = open_run(settings, Settings.given(os.environ), who, clock, names_of(_arguments().reconfigure))
    spark = LazySpark(run.settings, under_submit=True)
    with run:

        def make(compact: bool, keep: bool) -> Pipeline:
            return make_pipeline(
                run.settings, run.fs, spark, clock, compact, None, note, run.reporter, keep_replaced=keep
            )

        requests = RequestWorker(run.fs, run.layout, clock, make)
        wait = threading.Event().wait
        pipeline = run_until_idle(make(False, True), run.settings, clock, wait, once=True, requests=requests)
    print("\n".join(summary(pipeline.status)))
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("submit.py", description="Run the pipeline on the cluster of spark-submit.")
    parser.add_argument("--reconfigure", metavar="NAMES", help="recorded settings to replace, commas between")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (TopicsError, SettingsError, OSError) as error:
        print(f"topics: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
