"""`topics router create`."""

from typing import Annotated, Literal

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, show
from topics.cli.topic.tags import tag_match


def create(
    source: str,
    dest: str,
    /,
    *,
    name: Annotated[str | None, Parameter(help="The router's name.", show_default=lambda _: "'source->dest'")] = None,
    tag: Annotated[str | None, Parameter(help="Only records with this tag; a * at the end is any ending.")] = None,
    guarantee: Annotated[
        Literal["at_least_once", "exactly_once"], Parameter(help="How often a copy is made when there is a crash.")
    ] = "at_least_once",
    from_: Annotated[
        int | None,
        Parameter(name="--from", help="The first seq to copy.", show_default=lambda _: "what is appended from now on"),
    ] = None,
    preserve_node: Annotated[bool, Parameter(help="Whether a copy names the writer of its record.")] = True,
    preserve_tag: Annotated[bool, Parameter(help="Whether a copy has the tag of its record.")] = True,
    create_dest: Annotated[bool, Parameter(help="Whether to create a destination that is not there.")] = True,
    allow_cycle: Annotated[bool, Parameter(negative="", show_default=False, help="Let records go round.")] = False,
    output: Output = "table",
    server: Server = HERE,
) -> int:
    """Copy every record of one topic into another from now on, or change how.

    Parameters
    ----------
    source
        The topic that is read.
    dest
        The topic that is written to.
    """
    with connected(server) as client:
        answer = client.put_router(
            source,
            dest,
            name=name,
            filter=None if tag is None else tag_match(tag),
            guarantee=guarantee,
            from_seq=None if from_ is None else max(from_ - 1, 0),
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            allow_cycle=allow_cycle,
        )
    show(answer, output, f"{'created' if answer.created else 'changed'} {answer.router}", answer.router)
    return 0
