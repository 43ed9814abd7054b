"""The command line that benchmarks beside other servers have in common."""

import argparse
import signal
import sys
from collections.abc import Sequence

from bench.install import Missing
from bench.load import generator
from bench.peers import Server


def read_command(
    name: str, description: str | None, quick: str, servers: Sequence[Server]
) -> tuple[argparse.Namespace, list[Server]]:
    """Returns the parsed command line and the servers to measure; exits the program when a server is not available."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--write", action="store_true", help="write the report into bench/results")
    parser.add_argument("--only", metavar="KEYS", help=f"of {','.join(server.key for server in servers)}")
    parser.add_argument("--rounds", type=int, default=1, help="go over all servers so often; the median counts")
    parser.add_argument(
        "--patience", type=float, default=180, metavar="SECONDS", help="to repeat what other processes disturbed"
    )
    parser.add_argument(
        "--priority", action="store_true", help="go before everything else on the machine; needs root, starves others"
    )
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else [server.key for server in servers]
    unknown = set(chosen) - {server.key for server in servers}
    if unknown:
        parser.error(f"there is no server {', '.join(sorted(unknown))}")
    try:
        generator()
    except Missing as error:
        sys.exit(f"{name} cannot run: {error}")
    end_with_servers(name)
    return arguments, [server for server in servers if server.key in chosen]


def end_with_servers(name: str) -> None:
    """A signal that ends the benchmark must also end the server that was just started; a second signal must not
    interrupt that."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(f"{name}: ended by signal {number}")

    signal.signal(signal.SIGTERM, end)
