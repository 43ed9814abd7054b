"""Entry point of the search process: `python -m topics.search.worker FD`, a connected socket."""

import socket
import sys

from topics.search.worker.search_worker import Worker, map_file, serve
from topics.system.clock import SystemClock
from topics.system.process import step_back, tune_allocator, tune_collector


def main() -> None:
    # The server also answers writers, who must not wait for a search.
    step_back("low")
    # A query allocates a few dozen arrays of some hundred kilobytes and frees them at once.
    tune_allocator()
    tune_collector()
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        serve(connection, Worker(SystemClock().monotonic, map_file))
    except ConnectionError:
        pass


if __name__ == "__main__":
    main()
