"""Who works: the name under which jobs are leased, and the jobs that are meant."""

import getpass
import socket
from typing import Annotated

from cyclopts import Parameter

Node = Annotated[str | None, Parameter(help="The worker's name.", show_default=lambda _: "you, on this machine")]
Seqs = Annotated[int, Parameter(required=True, help="The seqs of the jobs.")]
LeaseIds = Annotated[
    list[str] | None,
    Parameter(
        name="--lease-id", negative="", help="The lease of each seq, in their order: only a job that is still held so."
    ),
]


def node_or_me(node: str | None) -> str:
    """The same name for every command of one person, so that what was claimed can be acknowledged."""
    return node or f"{getpass.getuser()}@{socket.gethostname()}"
