"""`topics rm`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.asking import Yes, confirm
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import CommandError
from topics.cli.shared.output import Output, show


def rm(
    *topics: Annotated[str, Parameter(required=True)],
    if_empty: Annotated[bool, Parameter(negative="", show_default=False, help="Only where no record is left.")] = False,
    yes: Yes = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete topics with everything in them. On a terminal it asks first.

    Parameters
    ----------
    topics
        Their names.
    """
    confirm(f"delete {', '.join(topics)} with everything in it?", yes or if_empty)
    missing = []
    with connected(server) as client:
        for topic in topics:
            answer = client.delete_topic(topic, if_empty=if_empty)
            if answer.deleted:
                routers = f", and its routers {', '.join(answer.routers_removed)}" if answer.routers_removed else ""
                show(answer, output, f"deleted {topic}{routers}", topic)
            else:
                missing.append(topic)
    if missing:
        raise CommandError(f"there is no topic {', '.join(missing)}: `topics ls` lists those there are")
    return 0
