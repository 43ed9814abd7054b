"""`topics create`."""

from typing import Any

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import CommandError
from topics.cli.shared.output import Output, show
from topics.cli.topic.config import given_config, with_config
from topics.client import TopicNotFound


def create(topic: str, /, *, output: Output = "table", server: Server = HERE, **flags: Any) -> int:
    """Create a topic.

    Parameters
    ----------
    topic
        Its name.
    """
    config = given_config(flags)
    with connected(server) as client:
        try:
            client.get_topic(topic, touch=False)
        except TopicNotFound:
            answer = client.put_topic(topic, config)
        else:
            # To put it again would take everything back to its default that is not named here.
            raise CommandError(f"there is a topic {topic} already: `topics set` changes its config")
    show(answer, output, f"created {answer.topic}", answer.topic)
    return 0


with_config(create, defaults=True)
