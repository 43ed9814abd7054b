"""`topics queue ls`."""

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, listing

_COUNTS = ("ready", "in_flight", "delayed", "dead_lettered")


def ls(prefix: str = "", /, *, output: Output = "table", server: Server = HERE) -> int:
    """List queues and how many jobs are ready, held, held back and given up.

    Parameters
    ----------
    prefix
        Only those whose name begins with this.
    """
    with connected(server) as client:
        head = ("QUEUE", "READY", "IN FLIGHT", "DELAYED", "DEAD")
        rows = [
            (topic.topic, *(getattr(topic.queue, one) for one in _COUNTS))
            for topic in client.all_topics(prefix)
            if topic.queue is not None
        ]
        listing(output, head, [(row, dict(zip(("queue", *_COUNTS), row, strict=True))) for row in rows])
    return 0
