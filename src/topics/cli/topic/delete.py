"""`topics delete`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.amounts import counted
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.failures import UsageError
from topics.cli.shared.output import Output, show
from topics.cli.topic.tags import tag_match


def delete(
    topic: str,
    /,
    *,
    before: Annotated[int | None, Parameter(help="Those whose seq is below this one.")] = None,
    tag: Annotated[str | None, Parameter(help="Those with this tag; a * at the end is any ending.")] = None,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Delete records for good: by seq, by tag, or those that both mean.

    Parameters
    ----------
    topic
        Its name.
    """
    if before is None and tag is None:
        raise UsageError(f"say which records: --before SEQ, --tag TAG or both; `topics rm {topic}` deletes all of it")
    with connected(server) as client:
        answer = client.delete(topic, before_seq=before, match=None if tag is None else tag_match(tag))
    show(answer, output, f"deleted {counted(answer.deleted, 'record')}; {answer.count} left", str(answer.deleted))
    return 0
