"""`topics stream ls`."""

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, listing


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List streams, in the order of their names. Topics are streams, too.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
    """
    with connected(server) as client:
        listing(
            output,
            ("STREAM", "ENTRIES", "CREATED", "EXPIRES", "PROFILE"),
            (
                ((one.name, int(one.next_offset), one.created_at, one.expires_at or "never", one.profile), one)
                for one in client.all_streams(prefix)
            ),
        )
    return 0
