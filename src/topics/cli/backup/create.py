"""`topics backup create`."""

import time
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import shown_bytes
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import CommandError
from topics.cli.shared.output import Output, note, show

_LOOK_AGAIN_S = 0.1


def create(
    *,
    wait: Annotated[bool, Parameter(help="Wait until it counts.")] = True,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Take a backup of a running server, to the place that it was started with."""
    with connected(server) as client:
        before = client.backups()
        client.create_backup()
        if not wait:
            note("the backup is being taken; `topics backup list` tells when it is there")
            return 0
        while True:
            now = client.backups()
            if now.failures > before.failures:
                raise CommandError(now.error or "the backup failed")
            if now.completed > before.completed and not now.running:
                break
            time.sleep(_LOOK_AGAIN_S)
        newest = now.backups[-1]
        sentence = f"backup {newest.number}: {newest.topics} topics, {shown_bytes(newest.bytes)}, at {now.place}"
        show(newest, output, sentence, str(newest.number))
    return 0
