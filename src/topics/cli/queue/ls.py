"""`topics queue ls`."""

from collections.abc import Iterator

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.metrics import by_topic
from topics.cli.shared.output import Output, listing
from topics.client import AccessRefused, Client

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
        rows = [(name, *(counts[one] for one in _COUNTS)) for name, counts in _queues(client, prefix)]
        listing(output, head, [(row, dict(zip(("queue", *_COUNTS), row, strict=True))) for row in rows])
    return 0


def _queues(client: Client, prefix: str) -> Iterator[tuple[str, dict[str, int]]]:
    """One look at the metrics has the counts of all queues, unless there are too many or the key may not see them.

    They tell of topics that the key may not touch, too; the list does not.
    """
    try:
        metrics = client.metrics()
    except AccessRefused:
        metrics = {}
    if not metrics or metrics.get("topics_topic_metrics_truncated"):
        for topic in client.all_topics(prefix):
            queue = client.get_topic(topic.topic, touch=False).queue
            if queue is not None:
                yield topic.topic, {name: getattr(queue, name) for name in _COUNTS}
        return
    found: dict[str, dict[str, int]] = {}
    for name in _COUNTS:
        for topic_name, value in by_topic(metrics, f"topics_topic_queue_{name}").items():
            found.setdefault(topic_name, {})[name] = int(value)
    for topic in client.all_topics(prefix):
        if topic.topic in found:
            yield topic.topic, found[topic.topic]
