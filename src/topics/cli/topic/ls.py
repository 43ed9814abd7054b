"""`topics ls`."""

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, listing


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List topics, in the order of their names.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
    """
    head = ("TOPIC", "RECORDS", "BYTES", "FIRST", "LAST")
    with connected(server) as client:
        listing(
            output,
            head,
            (
                ((topic.topic, topic.count, topic.bytes, topic.earliest_seq, topic.head_seq), topic)
                for topic in client.all_topics(prefix)
            ),
        )
    return 0
