"""The searching process: `python -m topics.searching FD`, a connected socket. It ends with the connection."""

import socket
import sys

from topics.searching.mapping import map_file
from topics.searching.messages import Messages
from topics.searching.worker import Worker
from topics.system.clock import SystemClock
from topics.system.machine import step_back
from topics.system.memory import tune_allocator, tune_collector

_READ_BYTES = 1 << 20


def main() -> None:
    # The server has writers to answer besides, who do not wait for a search.
    step_back("low")
    # A query is a few dozen arrays of some hundred kilobytes that are gone at once.
    tune_allocator()
    tune_collector()
    connection = socket.socket(fileno=int(sys.argv[1]))
    worker, messages = Worker(SystemClock().monotonic, map_file), Messages()
    try:
        while data := connection.recv(_READ_BYTES):
            for message in messages.feed(data):
                answer = worker.take(message)
                if answer is not None:
                    connection.sendall(answer)
    except ConnectionError:
        pass


if __name__ == "__main__":
    main()
