"""`topics set`."""

from typing import Any

import msgspec

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import Output, show
from topics.cli.topic.config import given_config, with_config


def set_(topic: str, /, *, output: Output = "table", server: Server = HERE, **flags: Any) -> int:
    """Change the config of a topic. What is not named stays as it is.

    Parameters
    ----------
    topic
        Its name.
    """
    changes = given_config(flags)
    if not changes:
        raise UsageError("nothing is to be changed: name a field, such as --cap-records 1000")
    with connected(server) as client:
        # The server replaces a config as a whole, so what stays has to be said, too.
        kept = msgspec.to_builtins(client.get_topic(topic, touch=False).config)
        kept.pop("durable")
        answer = client.put_topic(topic, {**kept, **changes})
    show(answer, output, f"changed {answer.topic}: {', '.join(sorted(changes))}", answer.topic)
    return 0


with_config(set_, defaults=False)
